resource "spillway_alert_channel" "ops" {
  name   = "ops"
  kind   = "webhook"
  url    = "https://ops.example/hooks/spillway"
  ui_url = "https://spillway.example"

  secret_wo          = var.webhook_secret
  secrets_wo_version = 1
}
