//! What needs real processes, files and sockets.

mod child;
mod clients;
mod ledger;
mod read_only;
