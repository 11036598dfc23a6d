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

variable "path" {
  description = "Of the lake: a directory of the service's machine, or s3://bucket/prefix."
  type        = string
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

resource "spillway_subscription" "lake" {
  name     = "shop_to_lake"
  source   = spillway_source.shop.name
  database = var.database
  slot     = spillway_slot.lake.slot_name

  target = {
    kind          = "lake"
    path          = var.path
    driver_memory = "1g"
  }
}

output "lake" {
  description = "Where the tables are, once they are copied."
  value       = "${var.path}, ${spillway_subscription.lake.state}"
}
