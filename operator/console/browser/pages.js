// The pages that the check visits. Each is visited in every width and theme. A page that needs
// something of the data has a function that finds its address.

// The row of a caller whose commits came too late. Callers who only sent too late have no commit in their lists.
const lateCommit = /EpochMismatch\W*submitCommit/

/** The pages, by the names of their pictures. */
export const pages = [
  { name: "now", path: "/" },
  { name: "welcomes", path: "/welcomes" },
  { name: "welcomes-list", path: "/welcomes?state=consumed" },
  { name: "welcomes-failed", path: "/welcomes?state=failed" },
  { name: "idempotency", path: "/idempotency" },
  { name: "idempotency-answers", find: (page) => link(page, "/idempotency", "row", lateCommit) },
  { name: "convo-form", path: "/convo" },
  { name: "convo", find: async (page) => link(page, await link(page, "/idempotency", "row", lateCommit), "listitem", "submitCommit", "/convo") },
  { name: "account-form", path: "/account" },
  { name: "account", find: async (page) => link(page, await link(page, "/idempotency", "row", lateCommit), "listitem", "submitCommit", "/account") },
  { name: "queues", path: "/queues" },
  { name: "reports", path: "/reports" },
  { name: "report", find: (page) => link(page, "/reports", "row", "harassment", "/reports?id=") },
  { name: "report-closed", find: (page) => link(page, "/reports", "row", "spam", "/reports?id=") },
  { name: "checks", path: "/checks?convo=" },
  { name: "actions", path: "/actions" },
]

/** The address of the first link in the first part of a page that has a text and a link. It waits: nodes write counts every 10 seconds, and a reading is shown for a minute. */
async function link(page, path, role, text, to = "/") {
  const part = page.getByRole(role).filter({ hasText: text, has: page.locator(`a[href^="${to}"]`) }).first()
  const end = Date.now() + 150_000
  do await page.goto(new URL(path, page.url()).href)
  while ((await part.count()) === 0 && Date.now() < end)
  return part.locator(`a[href^="${to}"]`).first().getAttribute("href")
}
