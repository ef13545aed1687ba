#include "ps_server/dashboard.h"

namespace weir {

absl::string_view DashboardPage() {
  return R"html(<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Weir</title>
<style>
  body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: #1c2430; }
  h1 { font-size: 1.3rem; } h1 span { font-weight: normal; color: #667; }
  table { border-collapse: collapse; width: 100%; margin: 1rem 0; }
  th, td { text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid #e3e7ec; font-variant-numeric: tabular-nums; }
  progress { width: 100%; height: 1rem; } .bad { color: #b00020; }
</style>
<h1>Weir <span id="title"></span></h1>
<progress id="bar" max="1" value="0"></progress>
<table id="facts"></table>
<table id="tasks"></table>
<p id="problem" class="bad"></p>
<script>
const row = (cells, tag = "td") => {
  const tr = document.createElement("tr");
  for (const c of cells) { const td = document.createElement(tag); td.textContent = c; tr.append(td); }
  return tr;
};
async function refresh() {
  try {
    const s = await (await fetch("status")).json();
    document.getElementById("title").textContent = `${s.name}: ${s.state.toLowerCase()}, ${s.mode}`;
    document.getElementById("bar").value = s.total_examples > 0 ? s.examples / s.total_examples : 0;
    const loss = s.train_loss === undefined ? "-" : Number(s.train_loss).toPrecision(4), speed = Math.round(s.examples_per_second).toLocaleString();
    const e = s.evaluation || {}, v = s.version_staleness || {}, l = s.lead || {};
    document.getElementById("facts").replaceChildren(
      row(["step", `${s.step} of ${s.total_steps}`]), row(["examples", `${s.examples} of ${s.total_examples}`]),
      row(["examples/s", speed]), row(["train loss", loss]),
      row(["test accuracy", e.examples > 0 ? e.test_accuracy.toFixed(4) : "-"]),
      row(["version staleness p50 / p99 / max", `${v.p50 || 0} / ${v.p99 || 0} / ${v.max || 0}`]),
      row(["lead p50 / max", `${l.p50 || 0} / ${l.max || 0}`]),
      row(["checkpoint", s.checkpoint || "none"]),
      row(["recoveries / lost pushes", `${s.recoveries || 0} / ${s.lost_pushes || 0}`]),
      row(["pushes refused", `${s.pushes_refused || 0}`]),
      row(["waiting for", (s.waiting_for || []).join(", ") || "nobody"]),
      ...(s.waits || []).filter(w => w.seconds >= 1).map(w =>
        row([`waits on ${w.server}`, `${w.calls}, ${w.seconds.toFixed(1)} s, for ${w.reason}`])));
    document.getElementById("tasks").replaceChildren(row(["task", "state", "clock", "version", "heard", "address"], "th"),
      ...(s.tasks || []).map(t => row([t.task, t.state, ...(t.task.startsWith("ps:") ? ["-", t.version || 0] : [t.clock || 0, "-"]), `${t.seconds_since_heard.toFixed(1)} s ago`, t.address])));
    document.getElementById("problem").textContent = s.failure || "";
  } catch (error) {
    document.getElementById("problem").textContent = `ps:0 does not answer: ${error}`;
  }
}
refresh();
setInterval(refresh, 1000);
</script>
</html>
)html";
}

}  // namespace weir
