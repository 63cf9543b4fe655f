//! Ids of jobs that follow from a name and a number, so that whoever does the same again means the same jobs.

use longhaul_queue::JobId;
use sha2::{Digest as _, Sha256};

/// Ten bytes of the name, six of the number, in the form of a UUID: ids follow each other, as an index likes them.
pub fn job(name: &str, number: u64) -> JobId {
    let digest = Sha256::digest(name);
    let mut bytes = [0; 16];
    bytes[..10].copy_from_slice(&digest[..10]);
    bytes[10..].copy_from_slice(&number.to_be_bytes()[2..]);
    bytes[6] = 0x80 | (bytes[6] & 0x0f);
    bytes[8] = 0x80 | (bytes[8] & 0x3f);
    JobId::from_bytes(bytes)
}

/// The number of such a job.
pub fn number(job: JobId) -> u64 {
    let mut number = [0; 8];
    number[2..].copy_from_slice(&job.as_bytes()[10..]);
    u64::from_be_bytes(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_those_of_the_name_and_follow_each_other() {
        assert_eq!(job("run-1", 7), job("run-1", 7));
        assert_ne!(job("run-1", 7), job("run-2", 7));
        let ids: Vec<JobId> = (0..300).map(|number| job("run-1", number)).collect();
        assert!(ids.iter().zip(0..).all(|(id, index)| number(*id) == index));
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
