//! Clients over a real socket, against servers that behave and servers that do not.

mod anthropic;
mod faults;
mod gemini;
mod local;
mod openai;
mod stub;
