//! Prompts to a model: what they would cost, and a run of them.

use longhaul_llm::{NanoUsd, Route};
use longhaul_pipeline::run::hold::{self, Hold};
use longhaul_prompts::plan::Strategy;
use longhaul_prompts::{Defaults, Draft, Estimate, Mode, NewRequest, Run, RunSettings, Source, Submission};
use serde::{Deserialize, Serialize};
use serde_json::{Number, Value, json};
use utoipa::ToSchema;

use super::change::no_worker;
use crate::ctx::Ctx;
use crate::problem::Problem;

/// Where runs of this door come from, and how they call themselves when nobody names them.
const SOURCE: &str = "mcp";

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct EstimateArguments {
    /// The model as its provider names it, or PROFILE/MODEL, such as sim/sim-small.
    model: String,
    /// Texts, each a request of its own. Give these or messages.
    prompts: Option<Vec<String>>,
    /// Conversations, each a list of messages and a request of its own. Give these or prompts.
    messages: Option<Vec<Vec<Message>>>,
    /// A system text for all of them.
    system: Option<String>,
    /// Most output tokens of each answer.
    max_tokens: Option<u32>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SubmitArguments {
    /// The model as its provider names it, or PROFILE/MODEL, such as sim/sim-small.
    model: String,
    /// Texts, each a request of its own. Give these or messages.
    prompts: Option<Vec<String>>,
    /// Conversations, each a list of messages and a request of its own. Give these or prompts.
    messages: Option<Vec<Vec<Message>>>,
    /// Your names for the requests, one each, in the same order; they come back with the answers.
    custom_ids: Option<Vec<String>>,
    /// A system text for all of them.
    system: Option<String>,
    /// Most output tokens of each answer.
    max_tokens: Option<u32>,
    /// For all of them.
    temperature: Option<f64>,
    /// A JSON Schema that every answer must fit.
    #[schema(value_type = Option<Object>)]
    schema: Option<Value>,
    /// sync: one by one, at once; batch: in provider batches, cheaper, up to a day; auto: in batches where there are any. Default as the
    /// server is set.
    mode: Option<ModeName>,
    /// Nothing is sent that could cost more in all; the run is then held.
    #[schema(value_type = Option<f64>)]
    max_cost_usd: Option<Number>,
    /// Labels; spending is counted by them too.
    #[serde(default)]
    tags: Vec<String>,
    /// A name for people.
    name: Option<String>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Message {
    role: Role,
    content: String,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Role {
    System,
    User,
    Assistant,
}

#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum ModeName {
    Auto,
    Sync,
    Batch,
}

/// `estimate_cost`.
pub(super) async fn estimate(ctx: &Ctx, asked: EstimateArguments) -> Result<Value, Problem> {
    let wanted = Wanted::new(
        ctx,
        SubmitArguments {
            model: asked.model,
            prompts: asked.prompts,
            messages: asked.messages,
            system: asked.system,
            max_tokens: asked.max_tokens,
            custom_ids: None,
            temperature: None,
            schema: None,
            mode: Some(ModeName::Sync),
            max_cost_usd: None,
            tags: Vec::new(),
            name: None,
        },
    )
    .await?;
    let estimate = wanted.estimate(ctx).await?;
    let mut shown = serde_json::to_value(&estimate).map_err(Problem::internal)?;
    shown["summary"] = summary(&estimate).into();
    Ok(shown)
}

/// What it comes to, in a sentence.
fn summary(estimate: &Estimate) -> String {
    let Estimate { requests, model, .. } = estimate;
    let (Some(cost), Some(ceiling)) = (estimate.cost(Mode::Sync), estimate.ceiling_usd) else {
        return match estimate.free {
            true => format!("{requests} requests to {model} cost nothing: it runs on a machine of one's own"),
            false => format!("{requests} requests to {model}: its price is not known here"),
        };
    };
    let batch = estimate.cost(Mode::Batch).map(|cost| format!(", in provider batches {cost}"));
    let made_up = if estimate.simulated { "; the price is made up, for the simulator" } else { "" };
    format!(
        "{requests} requests to {model} cost {} one by one ({}), at most {}{}{made_up}",
        cost,
        estimate.basis_text(),
        ceiling,
        batch.unwrap_or_default()
    )
}

/// `submit_batch`.
pub(super) async fn submit(ctx: &Ctx, asked: SubmitArguments) -> Result<Value, Problem> {
    let cap = asked.max_cost_usd.as_ref().map(money).transpose()?;
    let mut wanted = Wanted::new(ctx, asked).await?;
    let id = wanted.settings.run_id();
    // All of it is checked before anything is stored.
    wanted.settings.expected = Some(wanted.estimate(ctx).await?.expected(wanted.settings.mode));
    let known = Run::find(ctx.queue(), &id).await?.is_some();
    ctx.runs.set_limits(&id, cap, false).await?;
    let mut submission = Submission::begin(&ctx.prompts, wanted.settings).await?;
    let settings = submission.settings().clone();
    if !submission.is_complete().await? {
        for request in wanted.requests {
            submission.push(request).await?;
        }
        submission.finish().await?;
    }
    if known {
        // Whatever held it may be gone: a key was set, more money allowed. If not, it is held again.
        hold::open(ctx.queue(), &id, &Hold::RESUMED).await?;
    }
    let mut shown = json!({
        "run": id.as_str(),
        "requests": settings.source.requests,
        "model": settings.model,
        "profile": settings.profile,
        "mode": settings.mode,
        "mode_note": settings.mode_note,
        "estimate_usd": settings.expected.and_then(|expected| expected.cost_usd),
        "estimate_max_usd": settings.expected.and_then(|expected| expected.cost_max_usd),
        "existed_before": known,
        "next": format!("wait_job {}, then get_results", json!({ "id": id.as_str() })),
    });
    if let Some(word) = no_worker(ctx).await? {
        shown["note"] = word.into();
    }
    Ok(shown)
}

/// Dollars, to the billionth.
fn money(dollars: &Number) -> Result<NanoUsd, Problem> {
    dollars.to_string().parse().map_err(|error| Problem::invalid(error).at("max_cost_usd"))
}

/// A run that could be handed in.
struct Wanted {
    settings: RunSettings,
    requests: Vec<NewRequest>,
    route: Route,
}

impl Wanted {
    async fn new(ctx: &Ctx, asked: SubmitArguments) -> Result<Self, Problem> {
        let chosen = ctx.catalog.resolve(&asked.model)?;
        let requests = requests(asked.prompts, asked.messages, asked.custom_ids)?;
        let route = ctx.llm().route(&chosen.profile, &chosen.model).await?;
        let (system, max_tokens, temperature) = (asked.system, asked.max_tokens, asked.temperature);
        let draft = Draft {
            profile: chosen.profile,
            model: chosen.model,
            defaults: Defaults { system, max_tokens, temperature, dimensions: None },
            schema: asked.schema,
            strategy: match asked.mode {
                None => ctx.batches.strategy(),
                Some(ModeName::Auto) => Strategy::Auto,
                Some(ModeName::Sync) => Strategy::Sync,
                Some(ModeName::Batch) => Strategy::Batch,
            },
            tags: asked.tags,
            source: Source::given(asked.name, SOURCE, &requests),
            ..Draft::default()
        };
        let settings = draft.settings(&route, ctx.queue().clock().now())?;
        Ok(Self { settings, requests, route })
    }

    /// What it would cost; a request that the provider cannot take is named by its place.
    async fn estimate(&self, ctx: &Ctx) -> Result<Estimate, Problem> {
        let mut estimate = Estimate::new(Some(ctx.queue()), ctx.llm(), &self.route, &self.settings).await?;
        for (place, request) in self.requests.iter().enumerate() {
            let added = estimate.add(request.body.clone(), (ctx.llm(), &self.settings), &self.route).await;
            added.map_err(|error| {
                let problem = Problem::from(error);
                let detail = format!("request {place} (counted from 0) cannot be sent: {}", problem.detail);
                Problem { detail, ..problem }
            })?;
        }
        Ok(estimate)
    }
}

fn requests(
    prompts: Option<Vec<String>>,
    messages: Option<Vec<Vec<Message>>>,
    names: Option<Vec<String>>,
) -> Result<Vec<NewRequest>, Problem> {
    let bodies: Vec<Value> = match (prompts, messages) {
        (Some(prompts), None) => prompts
            .into_iter()
            .map(|prompt| json!({ "messages": [{ "role": "user", "content": prompt }] }))
            .collect(),
        (None, Some(conversations)) => {
            conversations.into_iter().map(|messages| json!({ "messages": messages })).collect()
        }
        (None, None) => return Err(Problem::invalid("give prompts, or messages").at("prompts")),
        (Some(_), Some(_)) => {
            return Err(Problem::invalid("prompts and messages exclude each other").at("messages"));
        }
    };
    let mut names: Vec<Option<String>> = match names {
        None => vec![None; bodies.len()],
        Some(names) if names.len() == bodies.len() => names.into_iter().map(Some).collect(),
        Some(names) => {
            let text = format!("there are {} custom_ids for {} requests", names.len(), bodies.len());
            return Err(Problem::invalid(text).at("custom_ids"));
        }
    };
    let named = bodies.into_iter().zip(names.drain(..));
    let request = |(body, custom_id)| NewRequest { custom_id, body, ..NewRequest::default() };
    Ok(named.map(request).collect())
}
