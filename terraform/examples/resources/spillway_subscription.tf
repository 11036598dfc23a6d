resource "spillway_subscription" "lake" {
  name     = "shop_to_lake"
  source   = spillway_source.shop.name
  database = "shop"
  tables   = ["public.orders", "public.items"]

  target = {
    kind      = "lake"
    format    = "delta"
    path      = "/srv/lake/shop"
    retention = "7d"
  }
}
