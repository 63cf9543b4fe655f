//! stub
use super::Result;
use super::layout::Plan;
use super::places::{Exported, Filled, Rows};
use super::settings::{Format, Source};
use std::path::Path;
/// stub
pub fn open(_: &Source, _: &[String]) -> Result<Box<dyn Rows>> {
    Err(super::Error::Invalid(String::new()))
}
/// stub
pub fn export(_: &Source, _: (&Path, Format), _: &Plan, _: &mut dyn Filled) -> Result<Exported> {
    Ok(Exported::default())
}
