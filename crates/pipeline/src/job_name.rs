//! Names that are made of a job's id, such as `batch_0198…`: the digits follow a prefix, without dashes.

use longhaul_queue::JobId;

/// Digits of an id.
pub const DIGITS: usize = 32;

/// The name of a job with a prefix.
pub fn name_of(id: JobId, prefix: &str) -> String {
    format!("{prefix}{}", id.to_string().replace('-', ""))
}

/// The job that a name with this prefix means.
pub fn id_of(name: &str, prefix: &str) -> Option<JobId> {
    let digits = name.strip_prefix(prefix)?;
    let plain = digits.len() == DIGITS && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    if plain { digits.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_leads_back_to_its_job_and_no_other_text_does() {
        let id = JobId::from_bytes([7; 16]);
        assert_eq!(id_of(&name_of(id, "batch_"), "batch_"), Some(id));
        for wrong in ["", "batch_", "batch_x", "file-07070707070707070707070707070707", &id.to_string()] {
            assert_eq!(id_of(wrong, "batch_"), None, "{wrong}");
        }
    }
}
