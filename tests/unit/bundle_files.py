"""The files of a small sound plugin, for tests that break one thing."""

from collections.abc import Mapping

from gateway.bundles import Bundle, parse_bundle

MANIFEST = """\
name: support-refund
version: "1.0.0"
description: Refunds.
instructions: instructions.md
skills: [skills/refund-policy.md]
services: [shop]
policy: policy.cedar
input_schema: {type: object, required: [invoice], properties: {invoice: {type: string}}}
limits: {max_steps: 20, max_cost_usd: "1.00"}
tools:
  - name: invoices.get
    description: Read one invoice.
    effect: read
    input_schema: {type: object, required: [id], properties: {id: {type: string}}}
    http: {connection: shop, method: GET, path: "/invoices/{id}"}
    event: "Reading invoice {id}"
  - name: refunds.create
    description: Refund part of an invoice.
    effect: write
    input_schema: {type: object, properties: {invoice: {type: string}, amount_cents: {type: integer}}}
    http: {connection: shop, method: POST, path: /refunds}
    approval: {groups: [finance], title: "Refund {amount_cents} cents on {invoice}"}
    reconcile: refunds.find
  - name: refunds.find
    description: Find a refund by effect id.
    effect: read
    input_schema: {type: object, required: [effect_id], properties: {effect_id: {type: string}}}
    http: {connection: shop, method: GET, path: /refunds}
    hidden: true
"""
FILES: Mapping[str, str] = {
    "plugin.yaml": MANIFEST,
    "instructions.md": "Explain the invoice.\n",
    "skills/refund-policy.md": "Refund the overage.\n",
    "policy.cedar": "permit (principal, action, resource);\n",
    "script.yaml": "- final: {message: done}\n",
}


def sound_bundle(**changed: str) -> Bundle:
    """The bundle with files added or replaced; `_` in a keyword is `.` in the path."""
    return parse_bundle({**FILES, **{path.replace("_", "."): text for path, text in changed.items()}})
