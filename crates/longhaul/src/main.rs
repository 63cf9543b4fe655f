//! The program `longhaul`, with the built-in pipelines alone.

use std::process::ExitCode;

fn main() -> ExitCode {
    longhaul::Program::new().main()
}
