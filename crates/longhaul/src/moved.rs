//! The record by which a store knows that its contents come from another, and whether all of them have come.

use anyhow::Result;
use longhaul_queue::EngineStore;
use serde::{Deserialize, Serialize};

use crate::exit::{Code, Failure};

/// Its name.
pub(crate) const RECORD: &str = "moved_from";

/// A move that was begun.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Begun {
    /// The old store, as it may be shown.
    pub(crate) from: String,
    /// Whether both stores were compared and found to be the same.
    pub(crate) finished: bool,
}

/// Refuses a store into which a move has not come to its end: what is done there would be done again from the old one, or come
/// back.
pub(crate) async fn check_whole(store: &dyn EngineStore) -> Result<()> {
    let Some(record) = store.record(RECORD.to_owned()).await? else { return Ok(()) };
    match record.value.to::<Begun>() {
        Ok(Begun { from, finished: false }) => {
            let text = format!("a move from {from} into this store is not finished");
            let hint = "repeat it, or name another store: longhaul move --from OLD --to THIS";
            Err(Failure::new(Code::Failure, text).hint(hint).into())
        }
        Ok(Begun { finished: true, .. }) | Err(_) => Ok(()),
    }
}
