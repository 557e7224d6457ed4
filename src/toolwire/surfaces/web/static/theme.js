// The chosen theme, before anything is drawn. Not a module: those run too late for that.
try {
  const theme = localStorage.getItem('toolwire-theme')
  if (theme === 'light' || theme === 'dark') document.documentElement.dataset.theme = theme
} catch {
  // no storage: the system's theme
}
