//! A store's contents as pieces, for comparisons and moves.

use crate::clock::Timestamp;
use crate::limits::PIECES_MAX;
use crate::store::{EngineStore, ExportRecord};

/// Everything that a store exports. Panics when it fails.
pub async fn export_all(store: &dyn EngineStore) -> Vec<ExportRecord> {
    export_by(store, PIECES_MAX).await
}

/// The same, by pages of `limit`.
pub async fn export_by(store: &dyn EngineStore, limit: usize) -> Vec<ExportRecord> {
    let mut pieces = Vec::new();
    let mut after = None;
    loop {
        let page = store.export(after, limit).await.expect("export answers");
        pieces.extend(page.pieces);
        after = page.next;
        if after.is_none() {
            return pieces;
        }
    }
}

/// Imports pieces, page by page. Panics when the store refuses them.
pub async fn import_all(store: &dyn EngineStore, pieces: Vec<ExportRecord>) {
    for page in pieces.chunks(5) {
        store.import(page.to_vec()).await.expect("import answers");
    }
}

/// Pieces as text, a line each, sorted: within its kind a piece may stand anywhere.
pub fn as_lines(pieces: &[ExportRecord]) -> String {
    let mut lines: Vec<String> =
        pieces.iter().map(|piece| serde_json::to_string(piece).expect("a piece is JSON")).collect();
    lines.sort_unstable();
    lines.join("\n")
}

/// Whether a store must still have it: keys and signals past their time may be gone.
pub(super) fn lasts_at(piece: &ExportRecord, now: Timestamp) -> bool {
    match piece {
        ExportRecord::Unique(unique) => {
            unique.ended.is_none() || unique.taken_until.is_some_and(|until| until > now)
        }
        ExportRecord::Signal { expires_at, .. } => *expires_at > now,
        _ => true,
    }
}
