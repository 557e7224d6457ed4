// Applies the chosen theme before anything is drawn. Not a module, because modules run too late for that.
try {
  const theme = localStorage.getItem('toolwire-theme')
  if (theme === 'light' || theme === 'dark') document.documentElement.dataset.theme = theme
} catch {
  // Without storage the system's theme applies.
}
