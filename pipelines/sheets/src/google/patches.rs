//! Cells made into few ranges: neighbours in a row become one, rows below each other with the same columns too.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;

use super::a1::Area;

/// Ranges in one request.
pub const REQUEST_RANGES_MAX: usize = 500;
/// Bytes of one request, about; Google advises no more than 2 MB.
pub const REQUEST_BYTES_MAX: usize = 1_900_000;
/// Bytes of one range, so that requests can be filled well.
const RANGE_BYTES_MAX: usize = 400_000;
/// Bytes around the values of a range: its name and the words of JSON.
const RANGE_BYTES: usize = 160;

/// Values for a rectangle.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Patch {
    row: u64,
    column: usize,
    pub(super) values: Vec<Vec<Value>>,
    bytes: usize,
}

impl Patch {
    pub(super) fn area(&self) -> Area {
        let width = self.values.first().map_or(0, Vec::len);
        let rows = self.row..self.row + self.values.len() as u64;
        Area::Cells { rows, columns: self.column..self.column + width }
    }
}

/// Cells by row and column.
pub(super) type Cells = BTreeMap<(u64, usize), Value>;

/// All cells, in few ranges.
pub(super) fn merged(cells: Cells) -> Vec<Patch> {
    let mut patches: Vec<Patch> = Vec::new();
    // The last patch of each place and width: the next row may belong to it.
    let mut open: HashMap<(usize, usize), usize> = HashMap::new();
    for line in lines(cells) {
        let place = (line.column, line.values.first().map_or(0, Vec::len));
        let above = open.get(&place).and_then(|index| patches.get_mut(*index)).filter(|above| {
            above.row + above.values.len() as u64 == line.row && above.bytes + line.bytes <= RANGE_BYTES_MAX
        });
        if let Some(above) = above {
            above.bytes += line.bytes - RANGE_BYTES;
            above.values.extend(line.values);
        } else {
            open.insert(place, patches.len());
            patches.push(line);
        }
    }
    patches
}

/// Neighbours in a row, as patches of one row.
fn lines(cells: Cells) -> Vec<Patch> {
    let mut lines: Vec<Patch> = Vec::new();
    for ((row, column), value) in cells {
        let bytes = serde_json::to_string(&value).map_or(0, |text| text.len()) + 1;
        let before = lines.last_mut().filter(|line| {
            let width = line.values.first().map_or(0, Vec::len);
            line.row == row && line.column + width == column && line.bytes + bytes <= RANGE_BYTES_MAX
        });
        match before.and_then(|line| line.values.first_mut().map(|values| (values, &mut line.bytes))) {
            Some((values, sum)) => {
                values.push(value);
                *sum += bytes;
            }
            None => lines.push(Patch { row, column, values: vec![vec![value]], bytes: bytes + RANGE_BYTES }),
        }
    }
    lines
}

/// Patches as they go into requests, in their order.
pub(super) fn requests(patches: Vec<Patch>) -> Vec<Vec<Patch>> {
    let mut requests: Vec<Vec<Patch>> = Vec::new();
    let mut bytes = 0;
    for patch in patches {
        bytes += patch.bytes;
        match requests.last_mut() {
            Some(request) if request.len() < REQUEST_RANGES_MAX && bytes <= REQUEST_BYTES_MAX => {
                request.push(patch);
            }
            _ => {
                bytes = patch.bytes;
                requests.push(vec![patch]);
            }
        }
    }
    requests
}

/// Bytes of some patches, about.
pub(super) fn bytes(patches: &[Patch]) -> usize {
    patches.iter().map(|patch| patch.bytes).sum()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn names(cells: &[(u64, usize)]) -> Vec<String> {
        let cells: Cells = cells.iter().map(|&(row, column)| ((row, column), json!([row, column]))).collect();
        let patches = merged(cells.clone());
        let kept: usize = patches.iter().flat_map(|patch| &patch.values).map(Vec::len).sum();
        assert_eq!(kept, cells.len());
        for patch in &patches {
            for (row, values) in (patch.row..).zip(&patch.values) {
                for (column, value) in (patch.column..).zip(values) {
                    assert_eq!(*value, json!([row, column]), "each value is in its place");
                }
            }
        }
        patches.iter().map(|patch| patch.area().name("S").replace("'S'!", "")).collect()
    }

    #[test]
    fn neighbours_become_one_range() {
        for (cells, want) in [
            (&[][..], &[][..]),
            (&[(0, 0)], &["A1:A1"]),
            (&[(0, 0), (0, 1), (0, 2)], &["A1:C1"]),
            (&[(0, 0), (0, 2)], &["A1:A1", "C1:C1"]),
            (&[(4, 3), (4, 4), (5, 3), (5, 4), (6, 3), (6, 4)], &["D5:E7"]),
            (&[(4, 3), (4, 4), (5, 3)], &["D5:E5", "D6:D6"]),
            (&[(4, 3), (6, 3)], &["D5:D5", "D7:D7"]),
            // Two blocks with a hole between them, three rows: two rectangles.
            (&[(1, 1), (1, 3), (2, 1), (2, 3), (3, 1), (3, 3)], &["B2:B4", "D2:D4"]),
            // A wider row in between parts what is above and below.
            (&[(1, 1), (2, 1), (2, 2), (3, 1)], &["B2:B2", "B3:C3", "B4:B4"]),
        ] {
            assert_eq!(names(cells), want);
        }
    }

    #[test]
    fn requests_keep_to_their_bounds() {
        let scattered: Cells = (0..1_200).map(|row| ((row * 2, 0), json!(0.5))).collect();
        let sizes: Vec<usize> = requests(merged(scattered)).iter().map(Vec::len).collect();
        assert_eq!(sizes, [500, 500, 200]);

        let long: Cells = (0..100).map(|row| ((row, 0), json!("x".repeat(45_000)))).collect();
        let requests = requests(merged(long));
        assert_eq!(requests.len(), 3);
        for request in &requests {
            let real = serde_json::to_string(&request.iter().map(|patch| &patch.values).collect::<Vec<_>>());
            assert!(real.expect("JSON").len() <= REQUEST_BYTES_MAX && bytes(request) <= REQUEST_BYTES_MAX);
        }
        let rows: usize = requests.iter().flatten().map(|patch| patch.values.len()).sum();
        assert_eq!(rows, 100);
    }

    #[test]
    fn a_wide_row_of_long_texts_is_parted() {
        let wide: Cells = (0..200).map(|column| ((0, column), json!("x".repeat(50_000)))).collect();
        assert!(merged(wide).iter().all(|patch| patch.bytes <= RANGE_BYTES_MAX));
    }
}
