resource "spillway_slot" "audit" {
  slot_name = "audit"
  source    = spillway_source.shop.name
  database  = "shop"
  plugin    = "wal2json"
  options   = { "format-version" = "2" }
}
