//! What jobs write down themselves: an append-only file, one write a line, so that its order is the order of events
//! over all processes and a killed writer leaves a whole line or none.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;
use std::str::FromStr;

/// A length of a line, for a guess at how large a journal becomes.
pub(super) const LINE_BYTES: u64 = 20;

/// What happened in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    /// The handler began; the value is the checkpoint that it found.
    Start,
    /// The store acknowledged a checkpoint; the value is its step.
    Saved,
    /// The handler answers that it wants to go on later; the value is the step handed over.
    Continue,
    /// The handler answers that it failed.
    Retry,
    /// The handler answers its result; the value is that.
    End,
}

impl What {
    const ALL: [(Self, &'static str); 5] = [
        (Self::Start, "start"),
        (Self::Saved, "saved"),
        (Self::Continue, "continue"),
        (Self::Retry, "retry"),
        (Self::End, "end"),
    ];
}

/// A line of the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Line {
    /// The job's number in the plan.
    pub(super) job: usize,
    /// The run's.
    pub(super) fence: u64,
    /// The process that wrote it.
    pub(super) pid: u32,
    /// The event.
    pub(super) what: What,
    /// What belongs to it.
    pub(super) value: u64,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = What::ALL.iter().find(|(what, _)| *what == self.what).map_or("", |(_, name)| name);
        write!(f, "{} {} {} {name} {}", self.job, self.fence, self.pid, self.value)
    }
}

impl FromStr for Line {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fields: Vec<&str> = text.split(' ').collect();
        let [job, fence, pid, what, value] = fields[..] else {
            return Err(format!("{text:?} is not a line of the journal"));
        };
        let number = |field: &str| field.parse::<u64>().map_err(|error| format!("{text:?}: {error}"));
        let found = What::ALL.iter().find(|(_, name)| *name == what);
        Ok(Self {
            job: usize::try_from(number(job)?).map_err(|error| error.to_string())?,
            fence: number(fence)?,
            pid: u32::try_from(number(pid)?).map_err(|error| error.to_string())?,
            what: found.ok_or_else(|| format!("{text:?} names no event"))?.0,
            value: number(value)?,
        })
    }
}

/// One run's pen.
pub(super) struct Pen {
    file: File,
    job: usize,
    fence: u64,
}

impl Pen {
    /// For a run of a job.
    pub(super) fn open(path: &Path, job: usize, fence: u64) -> io::Result<Self> {
        let file = OpenOptions::new().append(true).create(true).open(path)?;
        Ok(Self { file, job, fence })
    }

    /// Writes a line, in one call.
    pub(super) fn write(&mut self, what: What, value: u64) -> io::Result<()> {
        let line = Line { job: self.job, fence: self.fence, pid: std::process::id(), what, value };
        append(&mut self.file, &line)
    }
}

/// Appends a line in one call.
pub(super) fn append(file: &mut File, line: &dyn fmt::Display) -> io::Result<()> {
    file.write_all(format!("{line}\n").as_bytes())
}

/// The whole journal, in the order of events; what cannot be read is a problem of its own.
pub(super) fn read(path: &Path) -> io::Result<(Vec<Line>, Vec<String>)> {
    let text = std::fs::read_to_string(path)?;
    let mut lines = Vec::new();
    let mut problems = Vec::new();
    for line in text.lines() {
        match line.parse() {
            Ok(line) => lines.push(line),
            Err(problem) => problems.push(problem),
        }
    }
    Ok((lines, problems))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_comes_back_as_it_was_written() {
        for (what, name) in What::ALL {
            let line = Line { job: 7, fence: 2, pid: 99, what, value: 12 };
            assert_eq!(line.to_string(), format!("7 2 99 {name} 12"));
            assert_eq!(line.to_string().parse(), Ok(line));
        }
        assert!("7 2 99 star".parse::<Line>().is_err());
        assert!("7 2 99 begin 1".parse::<Line>().is_err());
    }
}
