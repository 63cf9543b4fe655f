//! The bare scripts of a Redis store against raw streams, without an engine: decides the structures before they are
//! built. `cargo run --release -p longhaul-stores --example redis_prototype -- redis://127.0.0.1:PORT`

use std::time::Instant;

use redis::aio::MultiplexedConnection;
use redis::{RedisResult, Script, Value};

const JOBS: usize = 100_000;
const BULK: usize = 1_000;
const BATCH: usize = 100;

const ENQUEUE: &str = r"
local t = KEYS[1]
local n = #ARGV / 2
local ids = {}
for i = 1, n do ids[i] = string.sub(ARGV[2 * i - 1], 1, 16) end
local found = redis.call('HMGET', t .. ':ids', unpack(ids))
for i = 1, n do if found[i] then return redis.error_reply('exists') end end
local last = redis.call('HINCRBY', t .. ':meta', 'seq', n) - n
local index, ready, bucket, fields = {}, {}, -1, {}
for i = 1, n do
  local seq = last + i
  local b = math.floor(seq / 128)
  if b ~= bucket then
    if #fields > 0 then redis.call('HSET', t .. ':j:' .. bucket, unpack(fields)) end
    bucket, fields = b, {}
  end
  local k = #fields
  fields[k + 1], fields[k + 2], fields[k + 3], fields[k + 4] = seq .. 'r', ARGV[2 * i - 1], seq .. 'p', ARGV[2 * i]
  index[2 * i - 1], index[2 * i] = ids[i], seq
  local _, state, flags, priority, run_at = struct.unpack('>c16BBi4d', ARGV[2 * i - 1])
  ready[2 * i - 1], ready[2 * i] = priority, struct.pack('>I6I6', run_at, seq)
end
redis.call('HSET', t .. ':j:' .. bucket, unpack(fields))
redis.call('HSET', t .. ':ids', unpack(index))
redis.call('ZADD', t .. ':ready:default:work', unpack(ready))
redis.call('HINCRBY', t .. ':counts', 'default:work:2', n)
redis.call('XADD', t .. ':events', 'MAXLEN', '~', 10000, '*', 'e', 'changes')
redis.call('PUBLISH', t .. ':changed', '')
return last
";

const CLAIM: &str = r"
local t, F = KEYS[1], '>c16BBi4ddddddI4I4I4I4I4I8I4I8Hc0Hc0Hc0Hc0'
local worker, now, till, limit = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local members = redis.call('ZRANGE', t .. ':ready:default:work', 0, limit - 1)
local n = #members
if n == 0 then return {} end
redis.call('ZREM', t .. ':ready:default:work', unpack(members))
local delivery = redis.call('HINCRBY', t .. ':meta', 'delivery', n) - n
local out, leases, bucket, asked = {}, {}, -1, {}
local seqs = {}
for i = 1, n do local _, s = struct.unpack('>I6I6', members[i]) seqs[i] = s end
local i = 1
while i <= n do
  local b = math.floor(seqs[i] / 128)
  local j, names = i, {}
  while j <= n and math.floor(seqs[j] / 128) == b do
    local k = #names
    names[k + 1], names[k + 2], names[k + 3] = seqs[j] .. 'r', seqs[j] .. 'p', seqs[j] .. 'o'
    j = j + 1
  end
  local found = redis.call('HMGET', t .. ':j:' .. b, unpack(names))
  local rows = {}
  for k = i, j - 1 do
    local x = (k - i) * 3
    local r = {struct.unpack(F, found[x + 1])}
    r[2], r[7], r[10], r[16], r[18], r[22] = 3, now, till, r[16] + 1, delivery + k, worker
    local row = struct.pack(F, r[1], r[2], r[3], r[4], r[5], r[6], r[7], r[8], r[9], r[10], r[11], r[12], r[13], r[14], r[15], r[16], r[17], r[18], #r[19], r[19], #r[20], r[20], #r[21], r[21], #r[22], r[22])
    rows[#rows + 1], rows[#rows + 2] = names[x + 1], row
    leases[2 * k - 1], leases[2 * k] = till, struct.pack('>I6', seqs[k])
    local o = 4 * (k - 1)
    out[o + 1], out[o + 2], out[o + 3], out[o + 4] = seqs[k], row, found[x + 2], found[x + 3]
    redis.call('XADD', t .. ':s:default', (delivery + k) .. '-0', 's', seqs[k])
  end
  redis.call('HSET', t .. ':j:' .. b, unpack(rows))
  i = j
end
redis.call('XREADGROUP', 'GROUP', 'g', worker, 'COUNT', n, 'STREAMS', t .. ':s:default', '>')
redis.call('ZADD', t .. ':leases', unpack(leases))
redis.call('HINCRBY', t .. ':counts', 'default:work:2', -n)
redis.call('HINCRBY', t .. ':counts', 'default:work:3', n)
redis.call('XADD', t .. ':events', 'MAXLEN', '~', 10000, '*', 'e', 'changes')
redis.call('PUBLISH', t .. ':changed', '')
return out
";

const SETTLE: &str = r"
local t, F = KEYS[1], '>c16BBi4ddddddI4I4I4I4I4I8I4I8Hc0Hc0Hc0Hc0'
local now, drop = tonumber(ARGV[1]), ARGV[2] == '1'
local n = (#ARGV - 2) / 3
local i, done, leases, prune, gone, out = 1, {}, {}, {}, {}, {}
local function seq(k) return tonumber(ARGV[3 * k]) end
while i <= n do
  local b = math.floor(seq(i) / 128)
  local j, names = i, {}
  while j <= n and math.floor(seq(j) / 128) == b do names[j - i + 1] = ARGV[3 * j] .. 'r' j = j + 1 end
  local found = redis.call('HMGET', t .. ':j:' .. b, unpack(names))
  local rows = {}
  for k = i, j - 1 do
    local r = {struct.unpack(F, found[k - i + 1])}
    if r[2] == 3 and r[16] == tonumber(ARGV[3 * k + 1]) then
      done[#done + 1] = r[18] .. '-0'
      leases[#leases + 1] = struct.pack('>I6', seq(k))
      if drop then
        gone[#gone + 1] = r[1]
        local x = #rows
        rows[x + 1], rows[x + 2], rows[x + 3] = names[k - i + 1], ARGV[3 * k] .. 'p', ARGV[3 * k] .. 'o'
      else
        r[2], r[8], r[10] = 5, now, -1
        local row = struct.pack(F, r[1], r[2], r[3], r[4], r[5], r[6], r[7], r[8], r[9], r[10], r[11], r[12], r[13], r[14], r[15], r[16], r[17], r[18], #r[19], r[19], #r[20], r[20], #r[21], r[21], #r[22], r[22])
        local x = #rows
        rows[x + 1], rows[x + 2], rows[x + 3], rows[x + 4] = names[k - i + 1], row, ARGV[3 * k] .. 'x', ARGV[3 * k + 2]
        prune[#prune + 1], prune[#prune + 2] = now + 86400000, leases[#leases]
      end
      out[k] = 5
    end
  end
  redis.call(drop and 'HDEL' or 'HSET', t .. ':j:' .. b, unpack(rows))
  i = j
end
redis.call('XACK', t .. ':s:default', 'g', unpack(done))
redis.call('XDEL', t .. ':s:default', unpack(done))
redis.call('ZREM', t .. ':leases', unpack(leases))
if drop then redis.call('HDEL', t .. ':ids', unpack(gone)) else redis.call('ZADD', t .. ':prune', unpack(prune)) end
redis.call('HINCRBY', t .. ':counts', 'default:work:3', -n)
redis.call('HINCRBY', t .. ':counts', 'default:work:5', n)
redis.call('HINCRBY', t .. ':ledger', '20000:default:work:5', n)
redis.call('XADD', t .. ':events', 'MAXLEN', '~', 10000, '*', 'e', 'changes')
redis.call('PUBLISH', t .. ':changed', '')
return out
";

/// A row as the scripts unpack it.
fn row(number: usize, now: f64) -> Vec<u8> {
    let mut row = Vec::with_capacity(160);
    row.extend((number as u128).to_be_bytes());
    row.extend([2, 0]);
    row.extend(0_i32.to_be_bytes());
    for time in [now, now, -1.0, -1.0, -1.0, -1.0] {
        // The struct library writes doubles in the machine's order whatever the format says.
        row.extend(time.to_be_bytes());
    }
    row.extend([0; 5 * 4 + 8 + 4 + 8]);
    for name in ["default", "work", "", ""] {
        row.extend((name.len() as u16).to_be_bytes());
        row.extend(name.as_bytes());
    }
    row
}

/// Microseconds of processor time that the server and this process have used.
async fn used(connection: &mut MultiplexedConnection) -> RedisResult<(f64, f64)> {
    let info: String = redis::cmd("INFO").arg("cpu").query_async(connection).await?;
    let of = |name: &str| {
        info.lines()
            .find_map(|line| line.strip_prefix(name))
            .and_then(|text| text.trim().parse().ok())
            .unwrap_or(0.0)
    };
    let server: f64 = of("used_cpu_user:") + of("used_cpu_sys:");
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let ticks: f64 = stat.split(' ').skip(13).take(2).filter_map(|text| text.parse::<f64>().ok()).sum();
    Ok((server * 1e6, ticks * 1e4))
}

fn rate(start: Instant) -> f64 {
    JOBS as f64 / start.elapsed().as_secs_f64()
}

async fn raw(connection: &mut MultiplexedConnection, payload: &str) -> RedisResult<(f64, f64)> {
    let start = Instant::now();
    let before = used(connection).await?;
    for _ in 0..JOBS / BULK {
        let mut pipe = redis::pipe();
        for _ in 0..BULK {
            pipe.cmd("XADD").arg("raw").arg("*").arg("p").arg(payload).ignore();
        }
        pipe.query_async::<()>(connection).await?;
    }
    let bulk = rate(start);
    let after = used(connection).await?;
    println!(
        "  bulk: server {:.1} us, client {:.1} us",
        (after.0 - before.0) / JOBS as f64,
        (after.1 - before.1) / JOBS as f64
    );
    redis::cmd("XGROUP").arg(&["CREATE", "raw", "g", "0"]).query_async::<()>(connection).await?;
    let start = Instant::now();
    let before = used(connection).await?;
    for _ in 0..JOBS / BATCH {
        let reply: Value = redis::cmd("XREADGROUP")
            .arg(&["GROUP", "g", "w", "COUNT", "100", "STREAMS", "raw", ">"])
            .query_async(connection)
            .await?;
        let ids = entry_ids(&reply);
        let mut pipe = redis::pipe();
        pipe.cmd("XACK").arg("raw").arg("g").arg(&ids).ignore();
        pipe.cmd("XDEL").arg("raw").arg(&ids).ignore();
        pipe.query_async::<()>(connection).await?;
    }
    let after = used(connection).await?;
    println!(
        "  drain: server {:.1} us, client {:.1} us",
        (after.0 - before.0) / JOBS as f64,
        (after.1 - before.1) / JOBS as f64
    );
    Ok((bulk, rate(start)))
}

fn entry_ids(reply: &Value) -> Vec<Vec<u8>> {
    let mut ids = Vec::new();
    if let Value::Array(streams) = reply
        && let Some(Value::Array(stream)) = streams.first()
        && let Some(Value::Array(entries)) = stream.get(1)
    {
        for entry in entries {
            if let Value::Array(entry) = entry
                && let Some(Value::BulkString(id)) = entry.first()
            {
                ids.push(id.clone());
            }
        }
    }
    ids
}

async fn ours(connection: &mut MultiplexedConnection, payload: &str, drop: bool) -> RedisResult<(f64, f64)> {
    let tag = if drop { "{a}" } else { "{b}" };
    let (enqueue, claim, settle) = (Script::new(ENQUEUE), Script::new(CLAIM), Script::new(SETTLE));
    redis::cmd("XGROUP")
        .arg("CREATE")
        .arg(format!("{tag}:s:default"))
        .arg(&["g", "0", "MKSTREAM"])
        .query_async::<()>(connection)
        .await?;
    let now = 1_800_000_000_000.0;
    let start = Instant::now();
    let before = used(connection).await?;
    for bulk in 0..JOBS / BULK {
        let mut call = enqueue.key(tag);
        for number in bulk * BULK..(bulk + 1) * BULK {
            call.arg(row(number, now)).arg(payload);
        }
        call.invoke_async::<i64>(connection).await?;
    }
    let bulk = rate(start);
    let after = used(connection).await?;
    println!(
        "  bulk: server {:.1} us, client {:.1} us",
        (after.0 - before.0) / JOBS as f64,
        (after.1 - before.1) / JOBS as f64
    );
    let start = Instant::now();
    let before = used(connection).await?;
    let mut settled = 0;
    while settled < JOBS {
        let reply: Vec<Value> = claim
            .key(tag)
            .arg("worker-0123456789")
            .arg(now)
            .arg(now + 60_000.0)
            .arg(BATCH)
            .invoke_async(connection)
            .await?;
        let mut call = settle.key(tag);
        call.arg(now).arg(u8::from(drop));
        for job in reply.chunks(4) {
            let Value::Int(seq) = job[0] else { continue };
            call.arg(seq).arg(1).arg("{\"ok\":true}");
        }
        settled += call.invoke_async::<Vec<Value>>(connection).await?.len();
    }
    let after = used(connection).await?;
    println!(
        "  drain: server {:.1} us, client {:.1} us",
        (after.0 - before.0) / JOBS as f64,
        (after.1 - before.1) / JOBS as f64
    );
    Ok((bulk, rate(start)))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> RedisResult<()> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    let mut connection = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
    let payload = format!("{{\"text\":\"{}\"}}", "x".repeat(189));
    for _ in 0..3 {
        redis::cmd("FLUSHALL").query_async::<()>(&mut connection).await?;
        let (raw_bulk, raw_drain) = raw(&mut connection, &payload).await?;
        for drop in [false, true] {
            let (bulk, drain) = ours(&mut connection, &payload, drop).await?;
            println!(
                "bulk {bulk:.0}/s of {raw_bulk:.0}/s: {:.2}; drain ({}) {drain:.0}/s of {raw_drain:.0}/s: {:.2}",
                bulk / raw_bulk,
                if drop { "deleted" } else { "kept" },
                drain / raw_drain,
            );
        }
    }
    Ok(())
}
