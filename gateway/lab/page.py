"""The look of reports that are one HTML file: light and dark, and nothing that is loaded."""

from __future__ import annotations

COLORS = 6
"""That tell series apart."""
STYLE = """
:root{color-scheme:light dark;--ink:#1c2430;--dim:#5d6a7a;--paper:#fff;--line:#dfe4ea;--warn:#9a4b00}
.c0{--c:#1f6fd0}.c1{--c:#d9591c}.c2{--c:#12876b}.c3{--c:#8a4fd3}.c4{--c:#b3246b}.c5{--c:#7a6a00}
@media(prefers-color-scheme:dark){:root{--ink:#e8ecf1;--dim:#9ba8b7;--paper:#14181e;--line:#2c343e;--warn:#f0a050}
.c0{--c:#6aa9f5}.c1{--c:#f58a55}.c2{--c:#46c2a2}.c3{--c:#b993f2}.c4{--c:#ee77ae}.c5{--c:#cbb63c}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:1440px;
margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;margin:0}h2{font-size:1.1rem;margin:2rem 0 .5rem}.dim,figcaption~*{color:var(--dim)}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums;white-space:nowrap}
th,td{padding:.25rem .45rem;text-align:right;border-bottom:1px solid var(--line)}
th{font-weight:600;color:var(--dim);font-size:.8rem}
th:nth-child(-n+2),td:nth-child(-n+2){text-align:left}.warn{color:var(--warn)}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(460px,100%),1fr));gap:1.5rem}
figure{margin:0}figcaption{font-weight:600}svg{width:100%;height:auto;display:block}
svg text{fill:var(--dim);font:11px system-ui,sans-serif}.grid{stroke:var(--line)}
.mark{stroke:var(--ink);stroke-dasharray:4 3}
.line{fill:none;stroke:var(--c);stroke-width:2}.dots,.knots{stroke:var(--c);stroke-linecap:round;fill:none}
.bar{fill:var(--c)}.dots{stroke-width:4;opacity:.55}.knots{stroke-width:7}
.legend{margin:.2rem 0 0;font-size:.85rem}.legend span{margin-right:1rem;white-space:nowrap}
.legend span::before{content:"";display:inline-block;width:.8em;height:.8em;border-radius:50%;
background:var(--c);margin-right:.4em}
pre{overflow-x:auto;background:color-mix(in srgb,var(--line) 35%,transparent);padding:.8rem;border-radius:6px}
"""
