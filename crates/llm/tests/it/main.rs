//! What needs real processes, files and sockets.

mod clients;
mod ledger;
mod read_only;
