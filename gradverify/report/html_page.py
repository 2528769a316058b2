"""The head of the HTML report: its style, and a policy that lets it load nothing."""

HEAD = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>gradverify report</title>
<style>
:root { color-scheme: light; }
body { margin: 0; background: #fff; color: #1c1e21; font: 16px/1.45 system-ui, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.4rem; margin: .2rem 0; }
h2 { font-size: 1.15rem; margin: 2rem 0 .2rem; overflow-wrap: anywhere; }
a { color: #0b57a4; }
small, .about, dt { color: #5c6470; }
.summary { font-weight: 600; }
.about { font-size: .9rem; margin: .2rem 0 .6rem; overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; }
th, td { text-align: left; vertical-align: top; padding: .35rem .6rem .35rem 0;
  border-bottom: 1px solid #dfe3e8; }
.targets td:nth-child(2) { overflow-wrap: anywhere; min-width: 8rem; }
.targets td:nth-child(3) { white-space: nowrap; }
.targets td:nth-child(4) { min-width: 11rem; }
.numbers td, .numbers th { font-variant-numeric: tabular-nums; white-space: nowrap; }
.mark { display: inline-block; padding: 0 .45rem; border-radius: .6rem; font-size: .85rem; font-weight: 600; }
.passed { background: #d9f2e0; color: #10592c; }
.failed { background: #fbdcd9; color: #8c1c13; }
.inconclusive, .unchecked { background: #fff0c7; color: #6b4b00; }
.skipped, .xfailed { background: #e8eaed; color: #41474e; }
details { margin: .5rem 0; }
summary { cursor: pointer; overflow-wrap: anywhere; }
.finding { border-left: 4px solid #c3c8ce; padding: .1rem 0 .1rem .8rem; }
.finding.error { border-color: #c5392b; }
.finding.warning { border-color: #d99a00; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem .8rem; margin: .4rem 0;
  font-size: .92rem; }
dd { margin: 0; overflow-wrap: anywhere; }
pre { background: #f4f5f7; padding: .6rem; overflow-x: auto; font-size: .85rem; border-radius: .3rem; }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.2rem, 1fr)); gap: .8rem;
  margin: .6rem 0; }
figure { margin: 0; min-width: 0; }
figcaption { font-size: .85rem; color: #5c6470; }
svg { display: block; width: 100%; height: auto; }
.scale { max-width: 36rem; }
@media (max-width: 32rem) {
  .targets, .targets tbody { display: block; }
  .targets tr { display: grid; grid-template-columns: 7.5rem 1fr; padding: .4rem 0;
    border-bottom: 1px solid #dfe3e8; }
  .targets tr:first-child { display: none; }
  .targets td { border: 0; padding: .1rem 0; }
  .targets td:nth-child(3) { color: #5c6470; font-size: .85rem; }
  .numbers { font-size: .78rem; }
  .numbers td, .numbers th { padding-right: .4rem; }
  dl { grid-template-columns: 1fr; }
  dt { font-size: .8rem; }
}
</style></head><body><main>
<h1>gradverify report</h1>"""
"""All that stands before the report's own content."""
