// The search shows a few words of each page that it finds. To get them it loads the page, which a
// browser does not allow for files: there the titles must do.
"use strict";

if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
