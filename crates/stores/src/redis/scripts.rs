//! The functions that the server runs: one library, made of the pieces in `scripts/`. The server reads it once; its name has
//! a digest of its text, so that programs of several versions on one server each have their own.

use std::collections::HashMap;

use longhaul_queue::limits::{EVENT_CHANGES_MAX, EVENTS_KEPT_MAX, LOG_LINES_MAX, RUNS_KEPT_MAX};

use super::encode::{BODY_IN_ROW_MAX, Fnv};

/// How rows and indexes are laid out; a number for each way that an older program cannot read.
pub(super) const LAYOUT: usize = 2;
/// A result up to this size stands in the row.
pub(super) const OUT_IN_ROW_MAX: usize = 512;
/// Days that the ledger remembers.
const LEDGER_KEPT_DAYS: usize = 400;

/// What the verbs share, in the order in which one builds on another.
const SHARED: [&str; 11] = [
    include_str!("scripts/tables.lua"),
    include_str!("scripts/queues.lua"),
    include_str!("scripts/flush.lua"),
    include_str!("scripts/graph.lua"),
    include_str!("scripts/reading.lua"),
    include_str!("scripts/insert.lua"),
    include_str!("scripts/enqueue_plain.lua"),
    include_str!("scripts/settlement.lua"),
    include_str!("scripts/settle_done.lua"),
    include_str!("scripts/lanes.lua"),
    include_str!("scripts/turns.lua"),
];

macro_rules! functions {
    ($($name:ident = $file:literal;)*) => {
        /// A function of the library.
        #[derive(Debug, Clone, Copy)]
        pub(super) enum Function {
            $($name,)*
        }

        const FUNCTIONS: &[(Function, &str, &str)] =
            &[$((Function::$name, $file, include_str!(concat!("scripts/", $file, ".lua"))),)*];

        impl Function {
            fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $file,)*
                }
            }
        }
    };
}

functions! {
    Enqueue = "enqueue";
    Claim = "claim";
    Extend = "extend";
    Save = "save";
    Settle = "settle";
    Parked = "parked";
    Unpark = "unpark";
    Cancel = "cancel";
    Cancelling = "cancelling";
    Revive = "revive";
    Edit = "edit";
    Delete = "delete";
    Promote = "promote";
    ExpiredLeases = "expired_leases";
    Prune = "prune";
    SetQueue = "set_queue";
    Seal = "seal";
    Fire = "fire";
    Get = "get";
    Walk = "walk";
    Processes = "processes";
    PutRecord = "put_record";
    ExportJobs = "export_jobs";
    Import = "import";
}

/// The library as the server loads it.
pub(super) struct Library {
    name: String,
    /// For `FUNCTION LOAD`.
    pub(super) source: String,
}

impl Library {
    pub(super) fn new() -> Self {
        let mut text = SHARED.join("\n");
        text.push_str(VERB);
        for (_, _, file) in FUNCTIONS {
            // Lua allows 200 names at once: those of a verb are its own.
            text.push_str(&format!("do\n{file}\nend\n"));
        }
        let body = fold(&text, limits());
        let mut digest = Fnv::default();
        digest.add(body.as_bytes());
        let name = format!("longhaul_{:016x}", digest.0);
        let source = format!("#!lua name={name}\n{}", body.replace("LIBRARY_", &format!("{name}_")));
        Self { name, source }
    }

    /// What `FCALL` calls a function.
    pub(super) fn name_of(&self, function: Function) -> String {
        format!("{}_{}", self.name, function.name())
    }
}

/// Between the shared pieces and the verbs: how a verb is made a function of the server.
const VERB: &str = "
local function verb(name, flags, run)
  local function callback(keys, args)
    begin(keys, args)
    return run()
  end
  redis.register_function{function_name = 'LIBRARY_' .. name, callback = callback, flags = flags}
end
";

/// The bounds that functions keep, from where they are defined.
fn limits() -> HashMap<String, String> {
    let limits = [
        ("EVENT_CHANGES_MAX", EVENT_CHANGES_MAX),
        ("EVENTS_KEPT_MAX", EVENTS_KEPT_MAX),
        ("RUNS_KEPT_MAX", RUNS_KEPT_MAX),
        ("LOG_LINES_MAX", LOG_LINES_MAX),
        ("BODY_IN_ROW_MAX", BODY_IN_ROW_MAX),
        ("OUT_IN_ROW_MAX", OUT_IN_ROW_MAX),
        ("LAYOUT", LAYOUT),
        ("LEDGER_KEPT_DAYS", LEDGER_KEPT_DAYS),
    ];
    limits.into_iter().map(|(name, limit)| (name.to_owned(), limit.to_string())).collect()
}

/// Puts constants in their places and drops comments: each local that a function uses makes it dearer to make and to call, and
/// Lua has room for 200 of them.
fn fold(source: &str, mut constants: HashMap<String, String>) -> String {
    let mut folded = String::with_capacity(source.len());
    for line in source.lines() {
        match constants_of(line) {
            Some(defined) => {
                let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
                constants.extend(defined.into_iter().map(owned));
            }
            None => fold_line(line, &constants, &mut folded),
        }
        folded.push('\n');
    }
    folded
}

/// What a line defines, if it is `local NAME, OTHER = 1, 'text'`.
fn constants_of(line: &str) -> Option<Vec<(&str, &str)>> {
    let (names, values) = line.trim_start().strip_prefix("local ")?.split_once(" = ")?;
    let is_name = |name: &&str| name.chars().all(|c| c.is_ascii_uppercase() || c == '_');
    let is_value = |value: &&str| {
        value.parse::<f64>().is_ok()
            || value.strip_prefix('\'').is_some_and(|text| text.find('\'') == Some(text.len() - 1))
    };
    let (names, values): (Vec<_>, Vec<_>) = (names.split(", ").collect(), values.split(", ").collect());
    let constant = names.iter().all(is_name) && values.iter().all(is_value) && names.len() == values.len();
    constant.then(|| names.into_iter().zip(values).collect())
}

fn fold_line(line: &str, constants: &HashMap<String, String>, folded: &mut String) {
    let mut rest = line;
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let length = if rest.starts_with("--") {
            return;
        } else if first == '\'' {
            rest[1..].find('\'').map_or(rest.len(), |end| end + 2)
        } else if is_word(first) {
            rest.find(|c| !is_word(c)).unwrap_or(rest.len())
        } else {
            first.len_utf8()
        };
        let (token, after) = rest.split_at(length);
        folded.push_str(constants.get(token).map_or(token, String::as_str));
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_stand_where_they_are_used_and_nowhere_else() {
        let source = "local READY, ROW = 2, '>c16'\nlocal T, NOW = KEYS[1], 5\nif r[READY] == 'READY' then -- READY\n  \
                      call(ROW, READY_AT, T)\nend";
        let folded = fold(source, HashMap::new());
        let expected =
            "\nlocal T, NOW = KEYS[1], 5\nif r[2] == 'READY' then \n  call('>c16', READY_AT, T)\nend\n";
        assert_eq!(folded, expected);
    }

    /// A constant is put in place from its line on, also in the files that follow.
    #[test]
    fn no_constant_means_two_things() {
        let files = SHARED.into_iter().chain(FUNCTIONS.iter().map(|(_, _, file)| *file));
        let mut known = limits();
        for (name, value) in files.flat_map(str::lines).filter_map(constants_of).flatten() {
            let before = known.insert(name.to_owned(), value.to_owned());
            assert!(before.as_deref().is_none_or(|before| before == value), "{name}: {before:?} and {value}");
        }
        assert!(known.len() > limits().len(), "{known:?}");
    }
}
