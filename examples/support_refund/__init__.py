"""The example plugin that explains an invoice and refunds its overage, with the shop service it calls."""
