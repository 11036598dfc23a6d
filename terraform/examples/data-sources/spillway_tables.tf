data "spillway_tables" "shop" {
  source   = "shop"
  database = "shop"
}

# Tables of which an UPDATE or DELETE says too little.
output "warnings" {
  value = { for t in data.spillway_tables.shop.tables : "${t.schema}.${t.name}" => t.warnings if length(t.warnings) > 0 }
}
