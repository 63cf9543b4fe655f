//! Precedence and refusals.

use super::*;

fn env(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn file(text: &str) -> FileValues {
    Some(("longhaul.toml".into(), flatten(text).expect("valid")))
}

fn origin(flags: &[Flag], variables: &[(&str, &str)], text: &str) -> (String, Origin) {
    let settings = Settings::resolve(flags, &env(variables), &file(text)).expect("valid");
    let setting = settings.get("store.url").expect("known");
    (setting.value.clone(), setting.origin.clone())
}

#[test]
fn flag_beats_environment_beats_file_beats_default() {
    let flag = [("store.url", "--store", "memory://".to_owned())];
    let variable = [("LONGHAUL_STORE__URL", "sqlite://env.db")];
    let text = "[store]\nurl = \"sqlite://file.db\"";
    assert_eq!(origin(&flag, &variable, text), ("memory://".to_owned(), Origin::Flag("--store")));
    assert_eq!(origin(&[], &variable, text).1, Origin::Env("LONGHAUL_STORE__URL".to_owned()));
    assert_eq!(origin(&[], &[], text), ("sqlite://file.db".to_owned(), Origin::File("longhaul.toml".into())));
    assert_eq!(origin(&[], &[], "").1, Origin::Default);
}

#[test]
fn a_wrong_value_is_refused_with_its_source() {
    let error = Settings::resolve(&[], &env(&[("LONGHAUL_WORKER__LEASE", "soon")]), &None)
        .expect_err("not a duration");
    let text = error.to_string();
    assert!(text.contains("worker.lease is \"soon\" from LONGHAUL_WORKER__LEASE"), "{text}");
    assert_eq!(crate::exit::code_of(&error), Code::Config);
}

#[test]
fn a_misspelt_setting_is_refused_by_name() {
    let error = Settings::resolve(&[], &BTreeMap::new(), &file("[store]\nulr = \"x\"")).expect_err("unknown");
    assert!(error.to_string().contains("`store.ulr` in longhaul.toml"), "{error}");
    let error = Settings::resolve(&[], &env(&[("LONGHAUL_STORE__ULR", "x")]), &None).expect_err("unknown");
    assert!(error.to_string().contains("LONGHAUL_STORE__ULR"), "{error}");
    // What a job's command gets in its environment is no setting.
    assert!(Settings::resolve(&[], &env(&[("LONGHAUL_JOB_ID", "x")]), &None).is_ok());
}

#[test]
fn the_template_is_a_valid_file_with_every_setting() {
    let uncommented: String = template()
        .lines()
        .map(|line| {
            if line.contains(" = ") || line.contains("[profiles") {
                line.trim_start_matches("# ")
            } else {
                line
            }
        })
        .map(|line| format!("{line}\n"))
        .collect();
    let values = flatten(&uncommented).expect("valid");
    let (profiles, settings): (Vec<_>, Vec<_>) = values.keys().partition(|name| profiles::is_field(name));
    assert_eq!(settings.len(), KEYS.len());
    assert!(profiles.iter().any(|name| *name == "profiles.mine.provider"), "{profiles:?}");
    Settings::resolve(&[], &BTreeMap::new(), &Some(("x".into(), values))).expect("defaults are valid");
}
