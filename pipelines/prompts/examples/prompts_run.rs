//! Three prompts as a run, answered by the simulator, and the same run submitted again: nothing is asked twice.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;

use longhaul_llm::cache::{Cache, CacheOptions};
use longhaul_llm::clock::SystemWallClock;
use longhaul_llm::price::Prices;
use longhaul_llm::rate::RouteLimits;
use longhaul_llm::{Llm, LlmFile, LlmOptions, Profile, ProfileSetup, Provider, ProviderKind};
use longhaul_pipeline::{Pipeline as _, RunId, Runs};
use longhaul_prompts::request::RequestResult;
use longhaul_prompts::{Mode, NewRequest, Prompts, RunSettings, Source, Submission};
use longhaul_queue::memory::MemoryStore;
use longhaul_queue::{Engine, QueueShare, Shutdown, Worker, WorkerOptions};
use longhaul_sim::{SimCore, SimOptions, SimProvider};

const PROMPTS: [&str; 3] = ["Name a river.", "Name a mountain.", "Name a lake."];

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let simulator = SimCore::new(SimOptions::default())?;
    let engine = Engine::new(Arc::new(MemoryStore::new()));
    let queue = engine.queue().clone();
    let prompts = Prompts::new(queue.clone(), models(Arc::new(SimProvider::new(simulator.clone())))?);

    let id = submit(&prompts).await?;
    work(&engine, &prompts, &id).await?;
    for (prompt, result) in PROMPTS.iter().zip(queue.results(&id.process(), 0, 500).await?.items) {
        let answer: RequestResult = result.result.ok_or("a prompt without an answer")?.to()?;
        println!("{prompt}  {}", answer.answer.text);
    }

    // The same input and settings are the same run: it is found, not made again.
    assert_eq!(submit(&prompts).await?, id);
    work(&engine, &prompts, &id).await?;
    assert_eq!(simulator.stats().executed, PROMPTS.len() as u64);

    let runs = Runs::new(queue, prompts.llm().clone(), vec![Arc::new(prompts)]);
    let run = runs.get(id.as_str()).await?;
    let status = run.status().await?;
    println!("{} answered for {} (simulated)", status.standing.units.done, status.spent.cost);
    run.remove().await?;
    assert!(runs.get(id.as_str()).await.is_err());
    Ok(())
}

/// Stores the requests; repeatable at any point.
async fn submit(prompts: &Prompts) -> Result<RunId, Box<dyn Error>> {
    let settings = RunSettings {
        profile: "sim".to_owned(),
        model: "sim-small".to_owned(),
        endpoint: Default::default(),
        defaults: serde_json::Map::from_iter([("max_tokens".to_owned(), 100.into())]),
        schema: None,
        fallback_model: None,
        mode: Mode::Sync,
        mode_note: None,
        switch_at: None,
        cache: Default::default(),
        tags: vec!["examples".to_owned()],
        // A digest of the input; whatever names it will do.
        source: Source {
            name: "three prompts".to_owned(),
            sha256: PROMPTS.concat(),
            requests: PROMPTS.len() as u64,
            ..Source::default()
        },
        expected: None,
    };
    let mut submission = Submission::begin(prompts, settings).await?;
    for prompt in PROMPTS {
        let body = serde_json::json!({ "messages": [{ "role": "user", "content": prompt }] });
        submission.push(NewRequest { body, ..NewRequest::default() }).await?;
    }
    Ok(submission.finish().await?)
}

/// A worker for this run alone, until nothing is left.
async fn work(engine: &Engine, prompts: &Prompts, id: &RunId) -> longhaul_queue::Result<()> {
    let queues = vec![QueueShare::from(id.as_str())];
    let options = WorkerOptions { queues, concurrency: 16, until_empty: true, ..WorkerOptions::default() };
    let mut worker = Worker::new(engine.clone(), options);
    prompts.register(&mut worker);
    worker.run(Shutdown::new()).await.map(drop)
}

/// The simulator under a profile of its own. A real provider is a profile with a key, and no entry in `providers`.
fn models(simulator: Arc<dyn Provider>) -> Result<Llm, Box<dyn Error>> {
    let profile = Profile::new("sim", ProviderKind::Sim);
    let setup = ProfileSetup { profile, limits: RouteLimits::default(), free: false };
    let file = LlmFile::in_memory()?;
    Ok(Llm::new(LlmOptions {
        profiles: BTreeMap::from([("sim".to_owned(), setup)]),
        providers: BTreeMap::from([("sim".to_owned(), simulator)]),
        cache: Cache::new(file.clone(), CacheOptions::default()),
        file,
        prices: Prices::built_in()?,
        clock: Arc::new(SystemWallClock),
        day_cap: None,
        poll_scale: 1.0,
    }))
}
