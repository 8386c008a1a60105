// The pages that the check visits. Each is visited in every width and theme. A page that needs
// something of the data has a function that finds its address.

/** The pages, by the names of their pictures. */
export const pages = [
  { name: "now", path: "/" },
  { name: "queues", path: "/queues" },
  { name: "checks", path: "/checks?convo=" },
  { name: "actions", path: "/actions" },
]
