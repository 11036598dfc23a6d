resource "spillway_alert_rule" "lag" {
  name     = "lag"
  codes    = ["slot_lagging", "subscription_stale"]
  limits   = { lag_s = 60, stale_s = 60 }
  hold_s   = 120
  quiet    = { from = "22:00", to = "07:00", timezone = "Europe/Vienna" }
  channels = [spillway_alert_channel.ops.name]
}
