data "spillway_publications" "shop" {
  source   = "shop"
  database = "shop"
}

output "published" {
  value = { for p in data.spillway_publications.shop.publications : p.name => [for t in p.tables : "${t.schema}.${t.name}"] }
}
