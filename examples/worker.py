#!/usr/bin/env python3
"""A Longhaul worker with nothing but the standard library: python3 worker.py http://127.0.0.1:7788 [QUEUE ...]"""
import json, os, socket, sys, threading, time, urllib.error, urllib.request

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:7788"
LEASE = float(os.environ.get("LEASE_SECONDS", "30"))
HEADERS = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ.get("LONGHAUL_TOKEN", "none")}

class Stop(Exception): """The job was cancelled, or is somebody else's now."""

def count_words(job, save):
    """Your code goes here. A checkpoint after each file: whoever goes on after a crash begins where this one got to."""
    counts = (job["data"] or {}).get("counts", {})
    files = job["payload"]["files"]
    for path in files[len(counts):]:
        counts[path] = len(open(path).read().split())
        save(data={"counts": counts}, progress={"done": len(counts), "total": len(files)}, log=["counted " + path])
    return counts

def call(path, body):
    """Sends until there is an answer. The lease makes a call that is sent twice harmless."""
    wait = 0.1
    while True:
        try:
            request = urllib.request.Request(URL + "/api/v1/work/" + path, json.dumps(body).encode(), HEADERS)
            with urllib.request.urlopen(request, timeout=90) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            if error.code == 410: raise Stop("the lease is lost")
            if error.code < 500 and error.code != 429: raise SystemExit(f"{path}: {error.read().decode()}")
        except OSError as error: print(f"{path}: {error}, trying again", file=sys.stderr)
        time.sleep(wait)
        wait = min(2 * wait, 5)

def work(job):
    lease, ended, stop = job["lease"], threading.Event(), threading.Event()
    def renew():
        while not ended.wait(LEASE / 3):
            renewal = call("extend", {"leases": [lease], "lease_seconds": LEASE})["leases"][0]
            if "lost" in renewal or renewal["extended"]["cancel_requested"]: stop.set()
    def save(**notes):
        if stop.is_set(): raise Stop("asked to end")
        call("save", {"lease": lease, **notes})
    threading.Thread(target=renew, daemon=True).start()
    try:
        outcome = {"done": count_words(job, save)}
    except Stop:
        outcome = "cancel"
    except Exception as error:
        outcome = {"retry": {"error": repr(error)}}
    print(call("settle", {"items": [{"lease": lease, "outcome": outcome}]})["items"][0], flush=True)
    ended.set()

ask = {"queues": sys.argv[2:] or ["default"], "kinds": ["count_words"], "lease_seconds": LEASE, "wait_seconds": 30}
ask.update(host=socket.gethostname(), pid=os.getpid())
while True:
    claimed = call("claim", ask)
    ask["worker"] = claimed["worker"]
    for job in claimed["jobs"]:
        work(job)
