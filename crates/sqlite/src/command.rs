//! A unit of work on its way through a transaction and back to its caller.

use rusqlite::Connection;
use tokio::sync::oneshot;

use crate::error::{FileError, FileErrorKind};
use crate::session::{Session, WriteOptions};

/// A unit of work.
pub(crate) trait Command<S: Session>: Send {
    fn options(&self) -> WriteOptions;
    /// Whether it may run again after its transaction was undone.
    fn is_repeatable(&self) -> bool;
    /// Tries to answer without a transaction; true when it did.
    fn probe(&mut self, connection: &Connection) -> bool;
    fn run(&mut self, tx: &mut S::Tx<'_>) -> Result<(), S::Error>;
    /// Answers the caller, after the commit.
    fn reply(self: Box<Self>, outcome: Result<(), S::Error>);
}

/// The answer to a command, once it is committed or failed.
pub(crate) type Answer<S, T> = oneshot::Receiver<Result<T, <S as Session>::Reply>>;

type Probe<S, T> = Box<dyn Fn(&Connection) -> Result<Option<T>, <S as Session>::Error> + Send>;

/// What a caller asks for.
pub(crate) struct Ask<S: Session, T> {
    pub(crate) options: WriteOptions,
    pub(crate) is_repeatable: bool,
    pub(crate) probe: Option<Probe<S, T>>,
}

impl<S: Session, T> From<WriteOptions> for Ask<S, T> {
    fn from(options: WriteOptions) -> Self {
        Self { options, is_repeatable: false, probe: None }
    }
}

struct Call<S: Session, T, F> {
    ask: Ask<S, T>,
    work: F,
    value: Option<T>,
    reply: oneshot::Sender<Result<T, S::Reply>>,
}

impl<S, T, F> Command<S> for Call<S, T, F>
where
    S: Session,
    T: Send,
    F: FnMut(&mut S::Tx<'_>) -> Result<T, S::Error> + Send,
{
    fn options(&self) -> WriteOptions {
        self.ask.options
    }

    fn is_repeatable(&self) -> bool {
        self.ask.is_repeatable
    }

    fn probe(&mut self, connection: &Connection) -> bool {
        // A probe that fails says nothing; the transaction will meet the error and report it.
        self.value = self.ask.probe.as_ref().and_then(|probe| probe(connection).ok().flatten());
        self.value.is_some()
    }

    fn run(&mut self, tx: &mut S::Tx<'_>) -> Result<(), S::Error> {
        self.value = Some((self.work)(tx)?);
        Ok(())
    }

    fn reply(self: Box<Self>, outcome: Result<(), S::Error>) {
        let Self { value, reply, .. } = *self;
        let answer = outcome.and_then(|()| value.ok_or_else(|| lost().into()));
        // The caller may have gone away; its work stands.
        let _ = reply.send(answer.map_err(Into::into));
    }
}

/// A command that may run again, and its answer.
pub(crate) fn command<S: Session, T: Send + 'static>(
    ask: Ask<S, T>,
    work: impl FnMut(&mut S::Tx<'_>) -> Result<T, S::Error> + Send + 'static,
) -> (Box<dyn Command<S>>, Answer<S, T>) {
    let (reply, answer) = oneshot::channel();
    (Box::new(Call { ask, work, value: None, reply }), answer)
}

/// A command that runs once, and its answer.
pub(crate) fn command_once<S: Session, T: Send + 'static>(
    ask: Ask<S, T>,
    work: impl FnOnce(&mut S::Tx<'_>) -> Result<T, S::Error> + Send + 'static,
) -> (Box<dyn Command<S>>, Answer<S, T>) {
    let mut work = Some(work);
    command(ask, move |tx| work.take().map_or_else(|| Err(lost().into()), |work| work(tx)))
}

fn lost() -> FileError {
    FileError::new(FileErrorKind::Stopped, "the writer lost a command")
}
