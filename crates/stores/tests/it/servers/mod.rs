//! Real servers for the tests, started on free ports of this machine and gone with the test process.

pub(crate) mod postgres;
