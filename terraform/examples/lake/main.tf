terraform {
  required_providers {
    spillway = { source = "terraform.local/spillway/spillway" }
  }
}

# The service of SPILLWAY_URL, http://127.0.0.1:8080 without it; its token is SPILLWAY_TOKEN.
provider "spillway" {}

variable "dsn" {
  description = "The cluster, and a role there that may log in and replicate."
  type        = string
  sensitive   = true
}

variable "database" {
  type = string
}

resource "spillway_source" "shop" {
  name = "shop"
  dsn  = var.dsn
}

resource "spillway_slot" "lake" {
  slot_name = "shop_to_lake"
  source    = spillway_source.shop.name
  database  = var.database
  plugin    = "arrow"
}
