//! Requests and responses of the HTTP API, spelled once: the server reads and writes them, `--server` and the command line's JSON use
//! the same types, and the schemas of MCP tools are derived from them. Nothing here opens a connection or knows a store.

pub mod bills;
pub mod costs;
pub mod page;
pub mod prompts;
pub mod runs;
pub mod sheets;

pub use page::{Listed, PageQuery};
