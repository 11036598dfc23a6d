variable "dsn" {
  type      = string
  sensitive = true # host=db.example dbname=shop user=spillway password=…
}

resource "spillway_source" "shop" {
  name                = "shop"
  dsn                 = var.dsn
  deletion_protection = true

  capture = {
    tables = ["public.*", "billing.invoices"]
  }
}
