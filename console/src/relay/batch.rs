//! Which documents a transaction on the target has carried, in few bytes, so that a relay that begins knows them
//! again on the source.
use serde_json::{Value, json};

/// The numbers of documents, as runs of consecutive ones, and the sum of the times at which they were put.
///
/// A source that was restored from a backup gives numbers again that it has given before. Documents count as those of
/// the batch only if all are there, and if the sum is the same.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    runs: Vec<(i64, i64)>,
    sum: i128,
}

impl Batch {
    /// The batch of documents: the number of each, in ascending order, and when it was put, in microseconds.
    pub fn of(documents: impl IntoIterator<Item = (i64, i64)>) -> Self {
        let mut batch = Self::default();
        for (id, put_at) in documents {
            batch.sum += i128::from(put_at);
            match batch.runs.last_mut() {
                Some((_, last)) if *last + 1 == id => *last = id,
                _ => batch.runs.push((id, id)),
            }
        }
        batch
    }

    /// All numbers.
    pub fn ids(&self) -> Vec<i64> {
        self.runs.iter().flat_map(|&(from, to)| from..=to).collect()
    }

    /// As it stands in the mark.
    pub fn to_json(&self) -> Value {
        let runs: Vec<_> = self
            .runs
            .iter()
            .map(|&(from, to)| json!([from, to]))
            .collect();
        json!({"ids": runs, "sum": self.sum()})
    }

    /// The sum, as text.
    pub fn sum(&self) -> String {
        self.sum.to_string()
    }

    /// Reads a mark. None: this is not one.
    pub fn from_json(value: &Value) -> Option<Self> {
        let runs = value["ids"]
            .as_array()?
            .iter()
            .map(|run| Some((run[0].as_i64()?, run[1].as_i64()?)))
            .collect::<Option<_>>()?;
        let sum = value["sum"].as_str()?.parse().ok()?;
        Some(Self { runs, sum })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_read_as_it_was_written() {
        let batch = Batch::of([(3, 10), (4, 11), (5, i64::MAX), (9, i64::MAX)]);
        assert_eq!(batch.ids(), [3, 4, 5, 9]);
        assert_eq!(batch.to_json()["ids"], json!([[3, 5], [9, 9]]));
        assert_eq!(Batch::from_json(&batch.to_json()), Some(batch));
        assert_eq!(
            Batch::from_json(&Batch::default().to_json()),
            Some(Batch::default())
        );
        assert_eq!(Batch::from_json(&json!({"ids": [["a", 1]]})), None);
    }

    #[test]
    fn documents_with_the_same_numbers_put_at_another_time_are_another_batch() {
        assert_ne!(Batch::of([(1, 10)]), Batch::of([(1, 11)]));
    }
}
