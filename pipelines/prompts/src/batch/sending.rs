//! The way of a batch to its provider. No provider makes a creation repeatable, so the intent is stored first, and a
//! creation that was not confirmed is looked for before anything is sent again.

use std::time::Duration;

use longhaul_llm::provider::{BatchInput, BatchItem, BatchProbe, BatchState, FoundBatch};
use longhaul_llm::{Billing, Class, Room};
use longhaul_pipeline::Hold;
use longhaul_pipeline::numbered;
use longhaul_queue::limits::PAGE_MAX;
use longhaul_queue::state::{OnTimeout, Park};
use longhaul_queue::{JobId, Json, Outcome, Timestamp};
use sha2::{Digest, Sha256};
use tracing::{info, warn};

use super::super::hold::scopes;
use super::super::request::RequestPayload;
use super::super::run::hex;
use super::super::{Result, collect};
use super::lost_batch::Stored;
use super::{BatchPayload, BatchTold, Ending, Kept, LastWord, Life, Next, Step, done, new_job, unsent};

/// A list of batches may lag behind a creation: how often to look before believing that there is none, and how long
/// to wait in between.
const LOOKS_MAX: u32 = 4;
const LOOK_WAIT: Duration = Duration::from_secs(20);
/// How often a batch whose fate is unknown is looked at while a person has not decided.
const AMBIGUOUS_WAIT: Duration = Duration::from_secs(600);

impl Life<'_> {
    /// Reserves the money and uploads the input.
    pub(super) async fn prepare(&self) -> Result<Next> {
        let input = self.input().await?;
        if input.items.is_empty() {
            return Ok(Next::Wait(done()));
        }
        match self.reserve(&input).await? {
            Room::All => {}
            Room::First(count) => return self.cut(&input, count),
            Room::Later => {
                self.context.log("other batches and calls under way have reserved the rest of the budget");
                return self.wait(&Step::Prepare, self.poll_wait(self.context.job().spent.parks));
            }
        }
        let file = self.live.route.upload_batch(&input).await?;
        Ok(Next::Step(Step::Uploaded { file }))
    }

    /// Creates the batch. The intent is stored before, the name after.
    pub(super) async fn submit(&self, file: Option<String>) -> Result<Next> {
        let input = self.input().await?;
        let sent_at = self.now();
        let intent =
            Step::Submitting { file: file.clone(), sent_at, looks: 0, candidates: Vec::new(), ending: None };
        self.save(&intent).await?;
        match self.live.route.create_batch(&input, file.as_deref()).await {
            Ok(status) => Ok(self.submitted(status.id, None)),
            Err(error) if error.maybe_billed => {
                warn!(%error, "a batch may or may not have been created, looking for it");
                Ok(Next::Step(intent))
            }
            Err(error) => {
                // Refused for certain: the intent is withdrawn.
                self.save(&Step::Uploaded { file }).await?;
                Err(error.into())
            }
        }
    }

    /// Looks for a batch whose creation was not confirmed.
    pub(super) async fn look(&self, step: &Step, told: Option<BatchTold>) -> Result<Next> {
        let Step::Submitting { file, sent_at, looks, candidates, ending } = step else {
            return Ok(Next::Step(step.clone()));
        };
        let (file, sent_at, mut ending) = (file.clone(), *sent_at, *ending);
        match told {
            Some(BatchTold::Resubmit) => return Ok(Next::Step(Step::Uploaded { file })),
            Some(BatchTold::Alone) => {
                return Ok(Next::Step(Step::Over { word: LastWord::Alone, maybe_billed: true }));
            }
            Some(BatchTold::Drop) => return Ok(given_up("the provider did not say whether it exists")),
            // It may be running: found, it can be ended.
            Some(BatchTold::Cancel) if ending.is_none() => {
                ending = Some(Ending::Cancel);
                let candidates = candidates.clone();
                let step = Step::Submitting { file, sent_at, looks: *looks, candidates, ending };
                return Ok(Next::Step(step));
            }
            Some(BatchTold::Wait | BatchTold::Cancel) | None => {}
        }
        let found = self.find(file.clone(), sent_at).await?;
        if let Some(ours) = self.recognise(&found).await? {
            info!(batch = ours, "found the batch whose creation was not confirmed");
            return Ok(self.submitted(ours, ending));
        }
        let open = found.iter().filter(|found| !found.status.state.is_terminal());
        let candidates: Vec<String> = open.map(|found| found.status.id.clone()).collect();
        let looks = looks + 1;
        match (candidates.is_empty(), ending) {
            (true, _) if looks < LOOKS_MAX => {
                let step = Step::Submitting { file, sent_at, looks, candidates, ending };
                self.wait(&step, LOOK_WAIT.mul_f64(self.prompts.llm().poll_scale()))
            }
            (true, Some(_)) => Ok(unsent(ending)),
            (true, None) => {
                info!("the batch whose creation was not confirmed does not exist, sending it again");
                Ok(Next::Step(Step::Uploaded { file }))
            }
            // Nobody waits for it any more; that one of them may be it is in the ledger.
            (false, Some(_)) => Ok(Next::Step(Step::Over { word: LastWord::Cancelled, maybe_billed: true })),
            (false, None) => {
                let text = "the provider did not confirm a batch and keeps no tags; a batch of this size and time exists, \
                            which may be it";
                self.ambiguous(&Step::Submitting { file, sent_at, looks, candidates, ending }, text)
            }
        }
    }

    async fn find(&self, file: Option<String>, sent_at: Timestamp) -> Result<Vec<FoundBatch>> {
        let probe = BatchProbe {
            tag: self.tag.clone(),
            file,
            sent_at_ms: sent_at.as_millis(),
            requests: self.payload.len() as usize,
        };
        let mut found = self.live.route.find_batches(&probe).await?;
        // One that was refused as a whole has run nothing, whosever it is.
        found.retain(|found| found.status.state != BatchState::Failed);
        Ok(found)
    }

    /// The batch that is ours for certain: by its tag, or by the ids in its results once it has ended.
    async fn recognise(&self, found: &[FoundBatch]) -> Result<Option<String>> {
        if let Some(ours) = found.iter().find(|found| found.certain) {
            return Ok(Some(ours.status.id.clone()));
        }
        for candidate in found.iter().filter(|found| found.status.state.is_terminal()) {
            if collect::has_our_ids(self, &candidate.status.id).await? {
                return Ok(Some(candidate.status.id.clone()));
            }
        }
        Ok(None)
    }

    /// Held until a person decides, or until a candidate has ended and can be told by its results.
    pub(super) fn ambiguous(&self, step: &Step, text: &str) -> Result<Next> {
        let until = self.now() + AMBIGUOUS_WAIT.mul_f64(self.prompts.llm().poll_scale());
        let key = Hold::Ambiguous.key(&self.live.id);
        let park = Park { key, until: Some(until), on_timeout: OnTimeout::Resume };
        Ok(Next::Wait(self.holding().hold_at(Hold::Ambiguous, park, text, &self.stored(step))?))
    }

    fn submitted(&self, id: String, ending: Option<Ending>) -> Next {
        self.context.log(format!("batch {id} with {} requests", self.payload.len()));
        Next::Step(Step::Submitted { id, at: self.now(), polls: 0, ending, completed: None, missing: None })
    }

    /// The requests that still wait for this batch, read from the store page by page.
    async fn input(&self) -> Result<BatchInput> {
        let run = &self.live.id;
        let ids: Vec<JobId> = self.payload.indexes().map(|index| run.job(index)).collect();
        let mut items = Vec::with_capacity(ids.len());
        for page in ids.chunks(PAGE_MAX) {
            for detail in self.prompts.queue().store().get(page.to_vec()).await? {
                if detail.job.state.is_terminal() {
                    continue;
                }
                let payload: RequestPayload = detail.payload.to()?;
                // One that is wrong in itself is failed by its own handler; the others go without it.
                let Ok(request) = payload.request(self.live) else { continue };
                items.push(BatchItem { custom_id: self.custom_id(numbered::number(detail.job.id)), request });
            }
        }
        Ok(BatchInput { tag: self.tag.clone(), items })
    }

    /// Books the whole batch at its ceiling, or says how much of it fits.
    async fn reserve(&self, input: &BatchInput) -> Result<Room> {
        let mut ceilings = Vec::with_capacity(input.items.len());
        for BatchItem { request, .. } in &input.items {
            let route = self.prompts.route_of(self.live, request.model()).await?;
            ceilings.push(route.ceiling(request, Billing::Batch));
        }
        let scopes = scopes(&self.live.id, &self.live.settings);
        Ok(self.prompts.llm().reserve_batch(&self.tag, scopes, &ceilings, &self.live.route).await?)
    }

    /// Keeps as many requests as fit into the budget at their ceilings; another batch sends the others, once these have turned
    /// out cheaper. Both are stored in one transaction.
    fn cut(&self, input: &BatchInput, count: usize) -> Result<Next> {
        let others = input.items.get(count).and_then(|item| self.index_of(&item.custom_id));
        let kept = self.payload.indexes().take_while(|index| Some(*index) != others).count() as u64;
        let rest = self.payload.after(kept);
        info!(kept, rest = rest.len(), "the budget has room for a part of a batch at a time");
        self.context.log(format!(
            "the budget has room for {kept} of {} requests at a time, each booked at the most it can cost; \
             --max-tokens bounds that",
            self.payload.len()
        ));
        self.context.enqueue(new_job(&rest)?)?;
        let kept = Kept { kept: Some(kept) };
        let data = Json::of(&Stored { step: &Step::Prepare, refused: &self.refused, kept })?;
        Ok(Next::Wait(Outcome::Continue { after: None, data: Some(data) }))
    }

    /// A request's name in the batch; told from those of other batches by the tag's digest.
    pub(in super::super) fn custom_id(&self, index: u64) -> String {
        format!("{}-{index}", self.id_prefix)
    }

    /// The request of a name.
    pub(in super::super) fn index_of(&self, custom_id: &str) -> Option<u64> {
        let index = custom_id.strip_prefix(&self.id_prefix)?.strip_prefix('-')?.parse().ok()?;
        self.payload.members.iter().any(|(first, last)| (*first..=*last).contains(&index)).then_some(index)
    }
}

/// A batch's name at the provider: unique, also when the same run is submitted again after it was consumed.
pub(super) fn tag(payload: &BatchPayload, created_at: Timestamp) -> String {
    let BatchPayload { run, chunk, round, part, .. } = payload;
    format!("{run}-{chunk}-{round}-{part}-{:x}", created_at.as_millis())
}

/// Tells the requests of a batch from those of others.
pub(super) fn id_prefix(tag: &str) -> String {
    hex(&Sha256::digest(tag)[..6])
}

/// The end of a batch that a person gives up on.
pub(super) fn given_up(why: &str) -> Next {
    let message = format!("its batch was given up: {why}");
    let word = LastWord::Failed { class: Class::Network, message };
    Next::Step(Step::Over { word, maybe_billed: true })
}
