//! The integration tests of the queue, one binary.

mod faulty;
mod memory;
