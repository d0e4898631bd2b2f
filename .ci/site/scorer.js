// The search ranks a week above all else, and the reference of `helpers` last. Sphinx puts this
// file before its own script. It adds up these numbers for each word that a page has.
var Scorer = {
  score: ([page, , , , score]) =>
    score + (/^notebooks\/(week|project)/.test(page) ? 1000 : page.startsWith("reference") ? 0 : 500),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
