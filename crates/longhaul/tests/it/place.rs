//! A directory of its own with a store in it, and the program run there.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

pub(crate) struct Place {
    directory: tempfile::TempDir,
    program: PathBuf,
}

/// What a run of the program said and how it ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self::of(env!("CARGO_BIN_EXE_longhaul").into())
    }

    /// With another program in the place of `longhaul`.
    pub(crate) fn of(program: PathBuf) -> Self {
        Self { directory: tempfile::tempdir().expect("a temporary directory"), program }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).expect("writing a file");
        path
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(args).current_dir(self.directory.path());
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("LONGHAUL_")) {
            command.env_remove(name);
        }
        for name in ["OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"] {
            command.env_remove(name);
        }
        // Neither the user's settings nor stored keys.
        command.env("XDG_CONFIG_HOME", self.path("config"));
        command.env("NO_COLOR", "1").env("TZ", "UTC");
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        Ran::from(self.command(args).stdin(Stdio::null()).output().expect("running longhaul"))
    }

    /// Runs with text on stdin.
    pub(crate) fn feed(&self, args: &[&str], input: &str) -> Ran {
        let mut command = self.command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("running longhaul");
        child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("feeding longhaul");
        Ran::from(child.wait_with_output().expect("waiting for longhaul"))
    }

    /// Runs and demands success; answers stdout without its last newline.
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let ran = self.run(args);
        assert_eq!(ran.code, Some(0), "{args:?}: {ran:?}");
        ran.stdout.trim_end().to_owned()
    }

    /// Runs with `-o json`, demands success and reads the answer.
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let text = self.ok(&[args, &["-o", "json"]].concat());
        serde_json::from_str(&text).expect("JSON on stdout")
    }

    /// Enqueues one job and answers its id.
    pub(crate) fn enqueue(&self, args: &[&str]) -> String {
        self.ok(&[&["enqueue"], args].concat())
    }

    /// Runs everything that is there to run. Code 3 says that jobs failed, which some tests want.
    pub(crate) fn drain(&self, args: &[&str]) -> Ran {
        let ran = self.run(&[&["work", "--drain"], args].concat());
        let expected = if ran.stderr.contains(" failed\n") { 3 } else { 0 };
        assert_eq!(ran.code, Some(expected), "{ran:?}");
        ran
    }

    pub(crate) fn show(&self, id: &str) -> Value {
        self.json(&["jobs", "show", id])
    }

    /// A job of kind `x`, run once by `command`, as it is afterwards. It is not retried by itself.
    pub(crate) fn exec(&self, payload: &str, command: &str) -> Value {
        let id = self.enqueue(&["x", payload, "--max-attempts", "1"]);
        self.drain(&["--exec", command]);
        self.show(&id)
    }
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        Self { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

impl Ran {
    /// Demands an exit code and words on stderr.
    pub(crate) fn fails(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        for word in words {
            assert!(self.stderr.contains(word), "{word:?} is missing: {self:?}");
        }
    }
}

pub(crate) fn read(path: &Path) -> String {
    std::fs::read_to_string(path).expect("reading a file")
}
