//! The third stage: judges answers, off the async runtime, as many at once as there are cores. What cannot be used goes
//! back through the lane; what cannot be answered goes on as failed. An answer whose judgement takes too long cannot be used.

use std::sync::Arc;
use std::time::Duration;

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
/// Longest judgement of an answer.
const JUDGE_LIMIT: Duration = Duration::from_secs(30);
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
            let judged = in_time(answers, move |answered| judge(&shared, answered)).await;
            for verdict in judged {
                let verdict = match verdict {
                    Verdict::Judged(verdict) => verdict,
                    Verdict::Late(answered) => unusable(&self.shared, answered, &too_slow()),
                    // A panic is a bug; the unit would be missing in the count for ever.
                    Verdict::Panicked => {
                        return self.shared.stop.set(Stop::Broken("judging an answer panicked".to_owned()));
                    }
                };
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

/// What became of an answer.
enum Verdict<T> {
    Judged(T),
    /// Its judgement took too long.
    Late(Answered),
    Panicked,
}

fn too_slow() -> String {
    format!("judging the answer took more than {} s", JUDGE_LIMIT.as_secs())
}

/// Judges answers one after the other, off the runtime. A judgement that takes too long is left to itself, since nothing can
/// end it, and the others go on elsewhere.
async fn in_time<T: Send + 'static>(
    answers: Vec<Answered>,
    judge: impl Fn(Answered) -> T + Send + Sync + 'static,
) -> Vec<Verdict<T>> {
    let (answers, judge) = (Arc::new(answers), Arc::new(judge));
    let mut verdicts = Vec::with_capacity(answers.len());
    while verdicts.len() < answers.len() {
        let (sender, mut judged) = mpsc::unbounded_channel();
        let (from, all, judge) = (verdicts.len(), Arc::clone(&answers), Arc::clone(&judge));
        tokio::task::spawn_blocking(move || {
            for answered in &all[from..] {
                // The receiver is gone once one of them was late.
                if sender.send(judge(answered.clone())).is_err() {
                    return;
                }
            }
        });
        while verdicts.len() < answers.len() {
            match tokio::time::timeout(JUDGE_LIMIT, judged.recv()).await {
                Ok(Some(verdict)) => verdicts.push(Verdict::Judged(verdict)),
                Ok(None) => {
                    verdicts.push(Verdict::Panicked);
                    return verdicts;
                }
                Err(_) => {
                    verdicts.push(Verdict::Late(answers[verdicts.len()].clone()));
                    break;
                }
            }
        }
    }
    verdicts
}

/// A unit that is through, or one that has to be asked again.
fn judge(shared: &Shared, answered: Answered) -> Result<Settled, Unit> {
    let Answered { unit, answer } = answered;
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
            let end = End::Scored { cells, by: sheet.answered_by(&unit), cached: false, key };
            Ok(Settled { unit, end })
        }
        Err(what) => unusable(shared, Answered { unit, answer }, &what),
    }
}

/// A unit whose answer cannot be used.
fn unusable(shared: &Shared, answered: Answered, what: &str) -> Result<Settled, Unit> {
    let Answered { mut unit, answer } = answered;
    let sheet = &shared.sheet;
    for scope in &sheet.scopes {
        shared.sheets.inner.llm.ledger().count(scope, Event::Repaired);
    }
    let hopeless = answer.stop == AnswerStop::Refused;
    unit.went_wrong(format!("{}: {what}", sheet.route_for(&unit).model()));
    match shared.try_again(unit, hopeless) {
        Ok(unit) => Err(unit),
        Err(unit) => Ok(Settled { unit, end: End::Failed }),
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

    fn answered(row: u64) -> Answered {
        let unit = Unit::new(0, row, 0, ("text".into(), Vec::new().into()));
        let answer = json!({ "model": "m", "text": "", "stop": "end", "usage": {} });
        Answered { unit, answer: serde_json::from_value(answer).unwrap() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_judgement_without_end_holds_up_no_other() {
        let (free, stuck) = std::sync::mpsc::channel::<()>();
        let stuck = std::sync::Mutex::new(stuck);
        let (started, mut begun) = mpsc::unbounded_channel();
        let judging = tokio::spawn(in_time((0..3).map(answered).collect(), move |answered: Answered| {
            if answered.unit.row == 1 {
                started.send(()).unwrap();
                // Until the test is over.
                let _ = stuck.lock().unwrap().recv();
            }
            answered.unit.row
        }));
        begun.recv().await.unwrap();
        // The verdict before it is there by now: once it is taken, the wait for this one begins.
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        tokio::time::advance(JUDGE_LIMIT).await;
        let verdicts = judging.await.unwrap();
        assert!(matches!(
            &verdicts[..],
            [Verdict::Judged(0), Verdict::Late(late), Verdict::Judged(2)] if late.unit.row == 1
        ));
        assert_eq!(too_slow(), "judging the answer took more than 30 s");
        drop(free);
    }

    #[tokio::test]
    async fn a_judgement_that_panics_is_told() {
        let verdicts = in_time(vec![answered(0)], |_| -> u64 { panic!("a bug") }).await;
        assert!(matches!(&verdicts[..], [Verdict::Panicked]));
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
