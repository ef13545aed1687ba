#include "ps_server/process/server_metrics.h"

namespace weir {

absl::string_view DashboardPage() {
  return R"html(<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Weir</title>
<style>
  body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: #1c2430; overflow-wrap: anywhere; }
  h1 { font-size: 1.3rem; } h1 span { font-weight: normal; color: #667; }
  table { border-collapse: collapse; width: 100%; margin: 1rem 0; }
  th, td { text-align: left; vertical-align: top; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid #e3e7ec; font-variant-numeric: tabular-nums; }
  th, td:not(:last-child) { overflow-wrap: normal; }
  progress { width: 100%; height: 1rem; } .bad { color: #b00020; }
  #now { display: flex; flex-wrap: wrap; gap: .2rem 2rem; margin: .5rem 0; } #now b { font-size: 1.2rem; font-variant-numeric: tabular-nums; }
  figure { margin: 1rem 0; } figcaption { color: #667; font-size: .85rem; display: flex; flex-wrap: wrap; gap: 0 1rem; justify-content: space-between; }
  svg { display: block; width: 100%; height: 12rem; border: solid #e3e7ec; border-width: 0 0 1px 1px; box-sizing: border-box; }
  svg path { fill: none; stroke: #2563a8; stroke-width: 2px; vector-effect: non-scaling-stroke; stroke-linecap: round; }
  svg #tests { stroke: #c2410c; stroke-width: 6px; }
  @media (max-width: 30rem) { body { padding: 0 .6rem; font-size: 14px; } th, td { padding-right: .4rem; } }
</style>
<h1>Weir <span id="title"></span></h1>
<progress id="bar" max="1" value="0"></progress>
<div id="now">
  <span><b id="loss">-</b> train loss</span><span><b id="speed">-</b> examples/s</span><span><b id="eta">-</b> to go</span>
</div>
<figure>
  <svg viewBox="0 0 1000 200" preserveAspectRatio="none" role="img" aria-label="training loss and test loss by examples"><path id="curve" d=""/><path id="tests" d=""/></svg>
  <figcaption><span id="range"></span><span id="extent"></span></figcaption>
</figure>
<table id="facts"></table>
<table id="tables"></table>
<table id="tasks"></table>
<p id="problem" class="bad"></p>
<script>
const at = id => document.getElementById(id);
const row = (cells, tag = "td") => {
  const tr = document.createElement("tr");
  for (const c of cells) { const td = document.createElement(tag); td.textContent = c; tr.append(td); }
  return tr;
};
const number = x => Number(x).toPrecision(4);
function duration(seconds) {
  const s = Math.ceil(seconds), h = Math.floor(s / 3600), m = Math.floor(s / 60) % 60;
  return h > 0 ? `${h} h ${m} min` : m > 0 ? `${m} min ${s % 60} s` : `${s} s`;
}
// How long the rest takes at the speed of the last seconds.
function timeToGo(s) {
  if (["DRAINING", "DONE", "FAILED"].includes(s.state)) return "-";
  return s.total_examples > 0 && s.examples_per_second > 0 ?
    duration((s.total_examples - s.examples) / s.examples_per_second) : "-";
}
// From 0 to the whole job's examples, and from the least to the greatest loss.
function drawCurve(s) {
  const points = (s.loss_curve || []).filter(p => Number.isFinite(p.train_loss)).map(p => [p.examples / s.total_examples, p.train_loss]);
  const tests = (s.evaluations || []).filter(e => Number.isFinite(e.test_loss)).map(e => [e.step / s.total_steps, e.test_loss]);
  const losses = [...points, ...tests].map(p => p[1]), least = Math.min(...losses), greatest = Math.max(...losses);
  if (losses.length === 0) return;
  const place = ([x, loss]) => `${(1000 * x).toFixed(1)} ${(greatest > least ? 195 - 190 * (loss - least) / (greatest - least) : 100).toFixed(1)}`;
  at("curve").setAttribute("d", points.map((p, i) => (i ? "L" : "M") + place(p)).join("") + (points.length === 1 ? "h0" : ""));
  at("tests").setAttribute("d", tests.map(p => `M${place(p)}h0`).join(""));
  at("range").textContent = `train loss${tests.length > 0 ? " (line) and test loss (dots)" : ""} from ${number(least)} to ${number(greatest)}`;
  at("extent").textContent = `by examples, 0 to ${Number(s.total_examples).toLocaleString()}`;
}
async function refresh() {
  try {
    const s = await (await fetch("status")).json();
    at("title").textContent = `${s.name}: ${s.state.toLowerCase()}, ${s.mode}`;
    at("bar").value = s.total_examples > 0 ? s.examples / s.total_examples : 0;
    at("loss").textContent = s.train_loss === undefined ? "-" : number(s.train_loss);
    at("speed").textContent = s.examples_per_second > 0 ? Math.round(s.examples_per_second).toLocaleString() : "-";
    at("eta").textContent = timeToGo(s);
    drawCurve(s);
    const e = s.evaluation || {}, v = s.version_staleness || {}, l = s.lead || {};
    const live = ((s.membership || {}).members || []).length;
    const age = s.checkpoint_age_seconds === undefined ? "" : `, ${duration(s.checkpoint_age_seconds)} ago`;
    at("facts").replaceChildren(
      row(["step", `${s.step} of ${s.total_steps}`]), row(["examples", `${s.examples} of ${s.total_examples}`]),
      row(["workers", `${live} of ${s.configured_workers}`]),
      row(["test accuracy", e.examples > 0 && e.test_accuracy >= 0 ? e.test_accuracy.toFixed(4) : "-"]),
      ...(e.test_auc === undefined ? [] : [row(["test AUC", e.test_auc.toFixed(4)])]),
      ...(s.metrics || []).map(m => row([m.name, number(m.last)])),
      ...(s.stopped_early ? [row(["stopped early", s.stopped_early])] : []),
      row(["version staleness p50 / p99 / max", `${v.p50 || 0} / ${v.p99 || 0} / ${v.max || 0}`]),
      row(["lead p50 / max", `${l.p50 || 0} / ${l.max || 0}`]),
      row(["checkpoint", s.checkpoint ? s.checkpoint + age : "none"]),
      row(["recoveries / lost pushes", `${s.recoveries || 0} / ${s.lost_pushes || 0}`]),
      row(["pushes refused", `${s.pushes_refused || 0}`]),
      row(["waiting for", (s.waiting_for || []).join(", ") || "nobody"]),
      ...(s.waits || []).filter(w => w.seconds >= 1).map(w =>
        row([`waits on ${w.server}`, `${w.calls}, ${w.seconds.toFixed(1)} s, for ${w.reason}`])));
    at("tasks").replaceChildren(row(["task", "state", "clock", "version", "heard", "address"], "th"),
      ...(s.tasks || []).map(t => row([t.task, t.state, ...(t.task.startsWith("ps:") ? ["-", t.version || 0] : [t.clock || 0, "-"]), ["expected", "waiting"].includes(t.state) ? "-" : `${t.seconds_since_heard.toFixed(1)} s ago`, t.address])));
    const tables = s.tables || [], count = x => Number(x || 0).toLocaleString();
    at("tables").replaceChildren(...(tables.length === 0 ? [] : [
      row(["table", "rows", "memory", "counted keys", "admitted", "expired", "evicted", "rows of each server", "hottest keys (in pushes)"], "th"),
      ...tables.map(t => row([t.name, count(t.all.rows), `${(t.all.bytes / 1e6).toFixed(1)} MB`,
        ...["keys_counted", "admitted", "expired", "evicted"].map(f => count(t.all[f])),
        t.shards.map(p => count(p.rows)).join(", "),
        (t.all.hottest || []).slice(0, 4).map(k => `${k.key} (${Math.round(100 * k.share)} %)`).join(", ") || "-"]))]));
    at("problem").textContent = s.failure || "";
  } catch (error) {
    at("problem").textContent = `ps:0 does not answer: ${error}`;
  }
}
refresh();
setInterval(refresh, 1000);
</script>
</html>
)html";
}

}  // namespace weir
