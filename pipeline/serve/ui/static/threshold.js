// A slider for the threshold: how far apart two faces may be to be one person.
import { html } from "./html.js";

const STEPS = 1000;

const oneIn = (rate) => `1 in ${Number((1 / rate).toPrecision(2)).toLocaleString("en")}`;

function toldBy(rates, threshold) {
  const atMost = rates.find(([, limit]) => limit >= threshold); // the rate that this threshold keeps to
  if (atMost) return `at most ${oneIn(atMost[0])} strangers would match`;
  return rates.length ? `more than ${oneIn(rates.at(-1)[0])} strangers would match` : "";
}

// `rates`: pairs (rate, threshold) of the calibration; `own`: the store's threshold, to which one can go back.
export function ThresholdSlider({ label, rates, own, threshold, onChange, disabled = false }) {
  const most = Math.max(own, rates.at(-1)?.[1] ?? 0) * 1.25;
  const least = Math.min(own, rates[0]?.[1] ?? 0) / 2;
  const told = toldBy(rates, threshold);
  const change = (event) => onChange(Number((least + (event.currentTarget.valueAsNumber / STEPS) * (most - least)).toFixed(3)));
  return html`
    <div class="slider">
      <span class="row"><span class="spread">${label} <strong>${threshold.toFixed(3)}</strong> <span class="soft">${told}</span></span>
        ${threshold !== own && html`<button class="plain" disabled=${disabled} onClick=${() => onChange(own)}>Back to the store’s</button>`}
      </span>
      <input type="range" min="0" max=${STEPS} value=${Math.round(((threshold - least) / (most - least)) * STEPS)} aria-label=${label}
        aria-valuetext=${`${threshold.toFixed(3)} ${told}`} disabled=${disabled} onInput=${change} />
      <span class="row soft"><span class="spread">strict</span><span>lax</span></span>
    </div>`;
}
