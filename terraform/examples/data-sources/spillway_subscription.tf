data "spillway_subscription" "lake" {
  name = "shop_to_lake"
}

output "lag_seconds" {
  value = data.spillway_subscription.lake.lag_seconds
}
