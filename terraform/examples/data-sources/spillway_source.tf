data "spillway_source" "shop" {
  name = "shop"
}

output "received" {
  value = data.spillway_source.shop.received_lsn
}
