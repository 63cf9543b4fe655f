//! `up`: the server, workers and maintenance in one process.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use longhaul_queue::{Maintenance, MaintenanceOptions, Shutdown, Worker, WorkerReport};
use longhaul_server::{Ctx, Server, ServerOptions};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::work;
use crate::app::App;
use crate::args::{UpArgs, WorkArgs};
use crate::backend::Backend;
use crate::config::{address, tls_files};
use crate::exit::{Code, Failure};
use crate::pipelines::Pipelines;
use crate::{builtin, models, server, store};

/// Runs the command until it is asked to end.
pub(crate) async fn run(app: &App, args: &UpArgs) -> Result<Code> {
    let address = listen_at(app, args)?;
    let tls = tls(app)?;
    let encrypted = tls.is_some();
    let options =
        ServerOptions { test_objects: args.seed_test_objects, encrypted, ..ServerOptions::default() };
    let (engine, data) = app.engine_for_long().await?;
    let (backend, ctx) = server::open(app, (&engine, data), options.for_address(address.ip())).await?;
    let (mut interrupts, mut terms) = work::signals()?;
    let server = Server::bind(ctx.clone(), address, tls).await.map_err(|error| {
        Failure::new(Code::Failure, format!("cannot listen on {address}: {error}"))
            .hint("another server may run there: name another --port, or 0")
    })?;
    introduce(app, &ctx, server.address(), encrypted, args)?;
    let shutdown = Shutdown::new();
    let mut working = std::pin::pin!(work(app, &backend, args, shutdown.clone()));
    let report = tokio::select! {
        report = &mut working => Some(report?),
        _ = interrupts.recv() => None,
        _ = terms.recv() => None,
    };
    app.out.note("draining: no new jobs and connections, what runs may end; once more to stop at once");
    shutdown.drain();
    let ending = async {
        let report = match report {
            Some(report) => Ok(report),
            None => working.await,
        };
        server.stop().await;
        report
    };
    let mut ending = std::pin::pin!(ending);
    let report = tokio::select! {
        report = &mut ending => report?,
        _ = interrupts.recv() => return stop(app, &shutdown, ending).await,
        _ = terms.recv() => return stop(app, &shutdown, ending).await,
    };
    if let Some(report) = report {
        work::summarise(app, &report)?;
    }
    Ok(Code::Ok)
}

/// The second signal: running jobs are given back.
async fn stop(
    app: &App,
    shutdown: &Shutdown,
    ending: impl Future<Output = Result<Option<WorkerReport>>>,
) -> Result<Code> {
    app.out.note("stopping: running jobs are given back");
    shutdown.stop();
    ending.await?;
    Ok(Code::Interrupted)
}

/// Runs jobs, or only keeps time for workers elsewhere.
async fn work(
    app: &App,
    backend: &Backend,
    args: &UpArgs,
    shutdown: Shutdown,
) -> Result<Option<WorkerReport>> {
    let Pipelines { engine, runs, .. } = &backend.pipelines;
    if args.no_workers {
        let sharing = models::open_books(app, engine, runs.llm()).await?;
        let maintenance = Maintenance::spawn(engine, MaintenanceOptions::default());
        shutdown.requested().await;
        maintenance.stop().await;
        sharing.end().await;
        return Ok(None);
    }
    let options = work::options(app, &WorkArgs::default())?;
    let mut worker = Worker::new(engine.clone(), options.clone());
    builtin::register(&mut worker);
    let serving = backend.serve(app, &mut worker, &options).await?;
    let report = worker.run(shutdown).await;
    serving.stop().await;
    Ok(Some(report?))
}

fn listen_at(app: &App, args: &UpArgs) -> Result<SocketAddr> {
    let mut listen: SocketAddr = app.settings.read("server.address", address)?;
    if let Some(host) = args.host {
        listen.set_ip(host);
    }
    if let Some(port) = args.port {
        listen.set_port(port);
    }
    Ok(listen)
}

/// The server's own certificate, if it has one.
fn tls(app: &App) -> Result<Option<Arc<rustls::ServerConfig>>> {
    if app.settings.get("server.tls")?.value.is_empty() {
        return Ok(None);
    }
    let (certificate, key) = app.settings.read("server.tls", tls_files)?;
    let read = |what: &str, error: &dyn std::fmt::Display| {
        Failure::new(Code::Config, format!("server.tls: {what} cannot be used: {error}"))
            .hint("it takes CERT.pem,KEY.pem, both in PEM form")
    };
    let chain = CertificateDer::pem_file_iter(&certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| read(&certificate.display().to_string(), &error))?;
    let secret =
        PrivateKeyDer::from_pem_file(&key).map_err(|error| read(&key.display().to_string(), &error))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .context("choosing TLS versions")?
        .with_no_client_auth()
        .with_single_cert(chain, secret)
        .map_err(|error| read("the certificate", &error))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Some(Arc::new(config)))
}

/// What one wants to see in the first lines.
fn introduce(app: &App, ctx: &Ctx, address: SocketAddr, encrypted: bool, args: &UpArgs) -> Result<()> {
    let scheme = if encrypted { "https" } else { "http" };
    let base = format!("{scheme}://{address}");
    app.out.one(&serde_json::json!({ "url": base }), || base.clone())?;
    let who = match ctx.options.token_required {
        true => "with a token: longhaul tokens add NAME",
        false => "this machine only, no token needed; Host and Origin are checked",
    };
    app.out.note(format_args!("open to      {who}"));
    app.out.note(format_args!("OpenAI SDK   base_url={base}/v1"));
    app.out.note(format_args!("Anthropic    base_url={base}"));
    app.out.note(format_args!("MCP          {base}/mcp"));
    app.out.note(format_args!("store        {}", store::shown_url(&app.settings)?));
    app.out.note(format_args!("durability   {}", ctx.queue().store().caps().durability));
    let usable: Vec<&str> = ctx
        .catalog
        .profiles
        .iter()
        .filter(|profile| profile.usable)
        .map(|profile| profile.name.as_str())
        .collect();
    let default = ctx.catalog.default_profile.as_deref().unwrap_or("none");
    app.out.note(format_args!("providers    {} (for other names of models: {default})", usable.join(", ")));
    if args.no_workers {
        app.out.note("workers      none here: longhaul work");
    }
    if !encrypted && !address.ip().is_loopback() {
        app.out.note("warning      tokens travel unencrypted: put a TLS proxy before it, or set server.tls");
    }
    Ok(())
}
