//! The third stage: judges answers, off the async runtime, as many at once as there are cores. What cannot be used goes
//! back through the lane; what nobody can answer goes on as failed.

use std::sync::Arc;

use longhaul_llm::cache::CacheMode;
use longhaul_llm::ledger::Event;
use longhaul_llm::{Stop as AnswerStop, repair, schema};
use serde_json::Value;
use tokio::sync::{Mutex, mpsc};

use super::pipeline::{Shared, Stop};
use super::settings::Mode;
use super::unit::{Answered, End, Settled, Unit};

/// Answers judged in one go.
const AT_ONCE: usize = 32;
/// Scores outside of the range by this part of it are taken for the end of the range: models round.
const TOLERANCE: f64 = 0.01;
/// Scores are rounded to so many parts of one.
const PARTS: f64 = 100.0;

/// Answers come in here; workers share them.
pub(super) type Incoming = Arc<Mutex<mpsc::Receiver<Answered>>>;

/// One of the workers.
pub(super) struct Validator {
    pub(super) shared: Arc<Shared>,
    pub(super) incoming: Incoming,
    pub(super) again: mpsc::UnboundedSender<Unit>,
    pub(super) write: mpsc::Sender<Settled>,
}

impl Validator {
    /// Runs until the pipeline is over and drops it.
    pub(super) async fn run(self) {
        loop {
            let mut answers = Vec::with_capacity(AT_ONCE);
            {
                let mut incoming = self.incoming.lock().await;
                if incoming.recv_many(&mut answers, AT_ONCE).await == 0 {
                    return;
                }
                self.shared.gauges.validation_queue.set(incoming.len() as u64);
            }
            let shared = Arc::clone(&self.shared);
            let judged = tokio::task::spawn_blocking(move || {
                answers.into_iter().map(|answered| judge(&shared, answered)).collect::<Vec<_>>()
            });
            let judged = match judged.await {
                Ok(judged) => judged,
                // A panic is a bug; the units would be missing in the count for ever.
                Err(error) => {
                    return self
                        .shared
                        .stop
                        .set(Stop::Broken(format!("judging an answer panicked: {error}")));
                }
            };
            for verdict in judged {
                let open = match verdict {
                    Ok(settled) => self.write.send(settled).await.is_ok(),
                    Err(unit) => self.again.send(unit).is_ok(),
                };
                if !open {
                    return;
                }
            }
        }
    }
}

/// A unit that is through, or one that has to be asked again.
fn judge(shared: &Shared, answered: Answered) -> Result<Settled, Unit> {
    let Answered { mut unit, answer } = answered;
    let sheet = &shared.sheet;
    let verdict = match answer.stop {
        AnswerStop::Length => Err("the answer was cut off".to_owned()),
        AnswerStop::Refused => Err("the model refused".to_owned()),
        _ => repair::of_answer(&answer).map_err(|error| error.message).and_then(|(value, _)| {
            let settings = &sheet.stored.settings;
            let size = sheet.stored.plan.block_categories(unit.block, settings.work.block_categories).len();
            cells(&value, &settings.mode, size, settings.range, &**sheet)
        }),
    };
    match verdict {
        Ok(cells) => {
            let route = sheet.route_for(&unit);
            let kept = sheet.stored.settings.cache != CacheMode::Off;
            let key = kept.then(|| sheet.prompt.key(&unit.text, unit.block, route));
            let end = End::Scored { cells, model: route.model().to_owned(), cached: false, key };
            Ok(Settled { unit, end })
        }
        Err(what) => {
            for scope in &sheet.scopes {
                shared.scoring.inner.llm.ledger().count(scope, Event::Repaired);
            }
            let hopeless = answer.stop == AnswerStop::Refused;
            unit.went_wrong(format!("{}: {what}", sheet.route_for(&unit).model()));
            match shared.try_again(unit, hopeless) {
                Ok(unit) => Err(unit),
                Err(unit) => Ok(Settled { unit, end: End::Failed }),
            }
        }
    }
}

/// What can check an object of the user's own schema.
pub(super) trait FreeSchema {
    /// The compiled schema and the names of its columns.
    fn free(&self) -> Option<(&schema::Compiled, Vec<&str>)>;
}

/// The cells of an answer, or what is wrong with it.
fn cells(
    value: &Value,
    mode: &Mode,
    size: usize,
    range: (f64, f64),
    free: &impl FreeSchema,
) -> Result<Vec<Value>, String> {
    match mode {
        Mode::Scores => {
            entries(value, size)?.iter().enumerate().map(|(at, entry)| score(entry, at, range)).collect()
        }
        Mode::Rationale => {
            let mut cells = Vec::with_capacity(2 * size);
            for (at, entry) in entries(value, size)?.iter().enumerate() {
                let reason = entry["reason"].as_str().map(str::trim).filter(|reason| !reason.is_empty());
                let reason = reason.ok_or_else(|| format!("entry {} has no reason", at + 1))?;
                cells.push(score(&entry["score"], at, range)?);
                cells.push(Value::from(reason));
            }
            Ok(cells)
        }
        Mode::Free { .. } => {
            let Some((schema, names)) = free.free() else { return Err("there is no schema".to_owned()) };
            schema.check(value)?;
            Ok(names.into_iter().map(|name| value[name].clone()).collect())
        }
    }
}

/// A list of exactly so many entries, as it is or under `scores`.
fn entries(value: &Value, size: usize) -> Result<&[Value], String> {
    let list = value.as_array().or_else(|| value["scores"].as_array());
    let list = list.ok_or("neither a list nor an object with a list of scores")?;
    if list.len() == size { Ok(list) } else { Err(format!("{} scores instead of {size}", list.len())) }
}

fn score(value: &Value, at: usize, (low, high): (f64, f64)) -> Result<Value, String> {
    let number = value.as_f64().filter(|number| number.is_finite());
    let number = number.ok_or_else(|| format!("score {} is no number", at + 1))?;
    let room = (high - low) * TOLERANCE;
    if number < low - room || number > high + room {
        return Err(format!("score {} is {number}, which is not between {low} and {high}", at + 1));
    }
    let rounded = (number.clamp(low, high) * PARTS).round() / PARTS;
    // No minus before a zero.
    Ok(Value::from(rounded + 0.0))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    struct Person(schema::Compiled);

    impl FreeSchema for Person {
        fn free(&self) -> Option<(&schema::Compiled, Vec<&str>)> {
            Some((&self.0, vec!["age", "name"]))
        }
    }

    fn person() -> (Mode, Person) {
        let schema = json!({
            "type": "object",
            "properties": { "age": { "type": "integer" }, "name": { "type": "string" } },
            "required": ["name"]
        });
        (Mode::Free { schema: schema.clone() }, Person(schema::Compiled::new(&schema).unwrap()))
    }

    #[test]
    fn scores_are_as_many_as_asked_in_range_and_rounded() {
        let (_, free) = person();
        let table = [
            (json!({ "scores": [0.123, 1, 0] }), Ok(vec![0.12, 1.0, 0.0])),
            (json!([0.999, 0.005, 0.0049]), Ok(vec![1.0, 0.01, 0.0])),
            (json!([1.005, -0.004, 0.5]), Ok(vec![1.0, 0.0, 0.5])),
            (json!([0.1, 0.2]), Err("2 scores instead of 3")),
            (json!([0.1, 0.2, 0.3, 0.4]), Err("4 scores instead of 3")),
            (json!([0.1, null, 0.3]), Err("score 2 is no number")),
            (json!([0.1, 0.2, "0.3"]), Err("score 3 is no number")),
            (json!([0.1, 7, 0.3]), Err("score 2 is 7, which is not between 0 and 1")),
            (json!({ "answer": 1 }), Err("neither a list nor an object with a list of scores")),
            (json!("no"), Err("neither a list nor an object with a list of scores")),
        ];
        for (value, expected) in table {
            let expected = expected
                .map(|numbers| numbers.into_iter().map(Value::from).collect::<Vec<_>>())
                .map_err(str::to_owned);
            assert_eq!(cells(&value, &Mode::Scores, 3, (0.0, 1.0), &free), expected, "{value}");
        }
    }

    #[test]
    fn a_rationale_needs_its_reason() {
        let (_, free) = person();
        let good = json!({ "scores": [{ "reason": " It fits. ", "score": 0.876 }] });
        let found = cells(&good, &Mode::Rationale, 1, (0.0, 1.0), &free);
        assert_eq!(found, Ok(vec![json!(0.88), json!("It fits.")]));
        for bad in [json!([{ "score": 0.5 }]), json!([{ "reason": " ", "score": 0.5 }]), json!([0.5])] {
            assert_eq!(
                cells(&bad, &Mode::Rationale, 1, (0.0, 1.0), &free),
                Err("entry 1 has no reason".to_owned())
            );
        }
    }

    #[test]
    fn fields_of_a_schema_become_cells() {
        let (mode, free) = person();
        let found = cells(&json!({ "name": "Ada" }), &mode, 0, (0.0, 1.0), &free);
        assert_eq!(found, Ok(vec![Value::Null, json!("Ada")]));
        assert!(cells(&json!({ "age": 3 }), &mode, 0, (0.0, 1.0), &free).is_err());
    }
}
