//! The scripts: each a file of its own behind the pieces that it shares with others.

use std::collections::HashMap;

use std::sync::Arc;

use redis::Script;

const TABLES: &str = include_str!("scripts/tables.lua");
const FLUSH: &str = include_str!("scripts/flush.lua");
const GRAPH: &str = include_str!("scripts/graph.lua");
const INSERT: &str = include_str!("scripts/insert.lua");
const ENQUEUE_PLAIN: &str = include_str!("scripts/enqueue_plain.lua");
const SETTLEMENT: &str = include_str!("scripts/settlement.lua");
const SETTLE_DONE: &str = include_str!("scripts/settle_done.lua");

macro_rules! scripts {
    ($($(#[$doc:meta])* $name:ident = [$($piece:ident),*] $file:literal;)*) => {
        /// All scripts, each loaded by the server when it is first asked for.
        pub(super) struct Scripts {
            $($(#[$doc])* pub(super) $name: Arc<Script>,)*
        }

        impl Scripts {
            pub(super) fn new() -> Self {
                Self {
                    $($name: script(&[TABLES, FLUSH, $($piece,)* include_str!($file)]),)*
                }
            }
        }
    };
}

scripts! {
    enqueue = [GRAPH, INSERT, ENQUEUE_PLAIN] "scripts/enqueue.lua";
    claim = [GRAPH] "scripts/claim.lua";
    extend = [] "scripts/extend.lua";
    save = [] "scripts/save.lua";
    settle = [GRAPH, INSERT, SETTLEMENT, SETTLE_DONE] "scripts/settle.lua";
    parked = [] "scripts/parked.lua";
    unpark = [GRAPH, SETTLEMENT] "scripts/unpark.lua";
    cancel = [GRAPH] "scripts/cancel.lua";
    cancelling = [] "scripts/cancelling.lua";
    revive = [GRAPH] "scripts/revive.lua";
    delete = [GRAPH] "scripts/delete.lua";
    promote = [GRAPH] "scripts/promote.lua";
    expired_leases = [] "scripts/expired_leases.lua";
    prune = [GRAPH] "scripts/prune.lua";
    set_queue = [] "scripts/set_queue.lua";
    seal = [GRAPH] "scripts/seal.lua";
    fire = [GRAPH, INSERT] "scripts/fire.lua";
    get = [GRAPH] "scripts/get.lua";
    walk = [] "scripts/walk.lua";
    processes = [] "scripts/processes.lua";
}

fn script(pieces: &[&str]) -> Arc<Script> {
    Arc::new(Script::new(&fold(&pieces.join("\n"))))
}

/// Puts constants in their places and drops comments. A script is run from its first line at every call, and each local
/// that a function uses makes each function dearer to make: with a hundred constants that is most of what a small call
/// costs.
fn fold(source: &str) -> String {
    let mut constants = HashMap::new();
    let mut folded = String::with_capacity(source.len());
    for line in source.lines() {
        match constants_of(line) {
            Some(defined) => constants.extend(defined),
            None => fold_line(line, &constants, &mut folded),
        }
        folded.push('\n');
    }
    folded
}

/// What a line defines, if it is `local NAME, OTHER = 1, 'text'`.
fn constants_of(line: &str) -> Option<Vec<(&str, &str)>> {
    let (names, values) = line.strip_prefix("local ")?.split_once(" = ")?;
    let is_name = |name: &&str| name.chars().all(|c| c.is_ascii_uppercase() || c == '_');
    let is_value = |value: &&str| {
        value.parse::<f64>().is_ok()
            || value.strip_prefix('\'').is_some_and(|text| text.find('\'') == Some(text.len() - 1))
    };
    let (names, values): (Vec<_>, Vec<_>) = (names.split(", ").collect(), values.split(", ").collect());
    let constant = names.iter().all(is_name) && values.iter().all(is_value) && names.len() == values.len();
    constant.then(|| names.into_iter().zip(values).collect())
}

fn fold_line(line: &str, constants: &HashMap<&str, &str>, folded: &mut String) {
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
        folded.push_str(constants.get(token).copied().unwrap_or(token));
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
        let folded = fold(source);
        let expected =
            "\nlocal T, NOW = KEYS[1], 5\nif r[2] == 'READY' then \n  call('>c16', READY_AT, T)\nend\n";
        assert_eq!(folded, expected);
    }
}
